package convert_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// dict is a dict of Python with keys that are not all strings.
func dict(pairs ...any) *value.Dict {
	d := &value.Dict{}
	for i := 0; i < len(pairs); i += 2 {
		d.Pairs = append(d.Pairs, value.Pair{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// optimizer returns a state like the state_dict of an optimizer: the parameters are called by
// numbers, and there is some text among those.
func optimizer(t *testing.T) map[string]any {
	t.Helper()
	x := must.Get(tensor.Of([]int64{2}, []float32{1, 2}))(t)
	moments := map[string]any{"exp_avg": x, "step": int64(3)}
	groups := []any{map[string]any{"lr": 0.5, "params": []any{int64(2), int64(10)}}}
	return map[string]any{"state": dict(int64(2), moments, int64(10), moments, "name", "adam"), "param_groups": groups}
}

// pickled returns a store with a file of torch.save.
func pickled(t *testing.T, v any) *mem.Store {
	t.Helper()
	b := must.Get(torchsave.Marshal(v))(t)
	s := new(mem.Store)
	if _, err := blob.WriteAll(t.Context(), s, "model.pt", b, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// unpickled returns the value in the file of torch.save in s.
func unpickled(t *testing.T, s blob.Store) any {
	t.Helper()
	b := must.Get(blob.ReadAll(t.Context(), s, "model.pt", 1<<20))(t)
	read := func(_ context.Context, p []byte, off int64) error { copy(p, b[off:]); return nil }
	f := must.Get(torchsave.Open(t.Context(), read, int64(len(b))))(t)
	v := must.Get(torchsave.Materialise(t.Context(), f.Root, read, 1<<20))(t)
	return v
}

// through converts src to one format after the other.
func through(t *testing.T, src blob.Store, o *convert.Options, all ...string) blob.Store {
	t.Helper()
	for _, to := range all {
		c := open(t, src)
		if o == nil {
			o = &convert.Options{Merge: formats.WholeTensors(to)}
		}
		dst := &mem.Store{Name: to}
		_, err := run(t.Context(), c, o, toFormat(to, dst))
		if err != nil {
			t.Fatalf("to %s: %v", to, err)
		}
		src, o = dst, nil
	}
	return src
}

// If an optimizer's state had the key "2" instead of 2, the optimizer would ignore it
// without an error.
func TestConvertKeepsIntegerKeys(t *testing.T) {
	adam := optimizer(t)
	number := dict(int64(0), int64(7), int64(-1), map[string]any{"a": "b"})
	for claim, c := range map[string]struct {
		saved, want any
		opts        *convert.Options
		formats     []string
	}{
		"from torch.save to itself":   {adam, adam, nil, []string{"torch"}},
		"by way of the native format": {adam, adam, nil, []string{"native", "torch"}},
		"and once more":               {adam, adam, nil, []string{"native", "native", "torch"}},
		"at the outermost":            {number, dict(int64(-1), map[string]any{"a": "b"}, int64(0), int64(7)), nil, []string{"native", "torch"}},
		"renamed before them": {
			map[string]any{"o": number}, map[string]any{"p": dict(int64(-1), map[string]any{"a": "b"}, int64(0), int64(7))},
			&convert.Options{Rename: []string{"o.*=p.*"}}, []string{"native", "torch"},
		},
		"renamed after them": {
			map[string]any{"o": number}, map[string]any{"o": dict(int64(-1), map[string]any{"c": "b"}, int64(0), int64(7))},
			&convert.Options{Rename: []string{"o.-1.a=o.-1.c"}}, []string{"native", "torch"},
		},
		"as text where it is only that": {map[string]any{"a": number}, map[string]any{"a": map[string]any{"-1": map[string]any{"a": "b"}, "0": int64(7)}}, nil, []string{"torchdcp", "torch"}},
	} {
		t.Run(claim, func(t *testing.T) {
			got := unpickled(t, through(t, pickled(t, c.saved), c.opts, c.formats...))
			if d := cmp.Diff(c.want, got, cmp.Comparer(tensor.Equal)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
