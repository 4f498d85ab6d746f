package convert_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func floats(t *testing.T, v ...float32) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.Of([]int64{int64(len(v))}, v))(t)
	return x
}

// Tensors inside objects stay inside through every format that has objects, even if
// they are renamed.
func TestTensorsInsideOfObjectsStayInside(t *testing.T) {
	type m = map[string]any
	x, y := floats(t, 1, 2), floats(t, 3)
	saved := m{"a": value.Tuple{x, m{"b": y}, "c"}, "odd": dict(nil, x, 1.5, value.Tuple{y}), "w": x}
	renamed := m{"z": saved["a"], "odd": saved["odd"], "w": x}
	inline := &convert.Options{Inline: formats.Inline("torchdcp")}
	for claim, c := range map[string]struct {
		want    m
		opts    *convert.Options
		formats []string
	}{
		"to itself":                     {saved, nil, []string{"torch"}},
		"by way of the native format":   {saved, nil, []string{"native", "torch"}},
		"by way of PyTorch's":           {saved, inline, []string{"torchdcp", "torch"}},
		"by way of PyTorch's, on ranks": {saved, &convert.Options{Inline: inline.Inline, WorldSize: 2}, []string{"torchdcp", "native", "torch"}},
		"renamed":                       {renamed, &convert.Options{Rename: []string{"a=z", "a.*=z.*"}}, []string{"native", "torch"}},
		"renamed, to itself":            {renamed, &convert.Options{Rename: []string{"a=z", "a.*=z.*"}}, []string{"torch"}},
		"cast": {
			m{"a": value.Tuple{x, m{"b": doubled(t, y)}, "c"}, "odd": saved["odd"], "w": x},
			&convert.Options{Inline: inline.Inline, DType: []string{"a.1.b=float64"}}, []string{"torchdcp", "torch"},
		},
	} {
		got := unpickled(t, through(t, pickled(t, saved), c.opts, c.formats...))
		if d := cmp.Diff(any(c.want), got, cmp.Comparer(tensor.Equal)); d != "" {
			t.Errorf("%s (-want +got):\n%s", claim, d)
		}
	}
}

func doubled(t *testing.T, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	out, err := tensor.New(tensor.Float64, x.Shape())
	if err == nil {
		err = tensor.Convert(out, x, tensor.CastAny)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A conversion that puts tensors into their objects keeps all values.
func TestConvertedObjectsCompareAsEqual(t *testing.T) {
	src := pickled(t, map[string]any{"a": value.Tuple{floats(t, 1, 2)}, "w": floats(t, 3)})
	dst := through(t, src, &convert.Options{Inline: formats.Inline("torchdcp")}, "torchdcp")
	sides := make([]inspect.Side, 2)
	for i, s := range []blob.Store{src, dst} {
		c := opened(t, s)
		md := must.Get(c.Metadata(t.Context()))(t)
		sides[i] = inspect.Side{Content: c, Metadata: md}
	}
	if d := cmp.Diff([]string{"a", "w"}, sides[1].Metadata.Names()); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
	if got, err := inspect.Compare(t.Context(), sides[0], sides[1], nil); err != nil || got.Equal == nil || !*got.Equal || got.Compared != 2 {
		t.Errorf("Compare = %+v, %v; want equal", got, err)
	}
}

// trainer returns a file of PyTorch with an object of an unknown class around a
// model.
func trainer(t *testing.T) blob.Store {
	t.Helper()
	b := must.Get(os.ReadFile("../storage/torchfile/testdata/trainer.pt"))(t)
	s := new(mem.Store)
	if _, err := blob.WriteAll(t.Context(), s, "trainer.pt", b, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// The tensors of an object that a format cannot hold are converted without it.
func TestTensorsOfSkippedObjectsAreConverted(t *testing.T) {
	src := trainer(t)
	for _, to := range []string{"hf", "torchdcp", "torch", "hyper"} {
		c := open(t, src)
		o := &convert.Options{Inline: formats.Inline(to), Merge: formats.WholeTensors(to)}
		if _, err := run(t.Context(), c, o, toFormat(to, new(mem.Store))); !errors.Is(err, storage.ErrNotRepresentable) {
			t.Errorf("%s: convert = %v; want %v", to, err, storage.ErrNotRepresentable)
		}
		o.SkipObjects = true
		dst := new(mem.Store)
		rep, err := run(t.Context(), c, o, toFormat(to, dst))
		if err != nil || strings.Join(rep.Skipped, " ") != "value" {
			t.Fatalf("%s: convert = %+v, %v", to, rep, err)
		}
		want, got := digests(t, src), digests(t, dst)
		delete(want, "value")
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", to, d)
		}
	}
	// The native format holds the object, too.
	if d := cmp.Diff(digests(t, src), digests(t, through(t, src, nil, "native"))); d != "" {
		t.Errorf("native (-want +got):\n%s", d)
	}
}

// Weights that share a storage still share it, even if they are renamed.
func TestTiedWeightsStayTied(t *testing.T) {
	b := must.Get(os.ReadFile("../storage/torchfile/testdata/tied.pt"))(t)
	src := new(mem.Store)
	if _, err := blob.WriteAll(t.Context(), src, "model.pt", b, nil); err != nil {
		t.Fatal(err)
	}
	for claim, o := range map[string]*convert.Options{
		"as they are": nil, "renamed": {Rename: []string{"head=head2"}}, "cast": {DType: []string{"bfloat16"}}, "one of them cast": {DType: []string{"head=bfloat16"}},
	} {
		c := opened(t, through(t, src, o, "torch"))
		md := must.Get(c.Metadata(t.Context()))(t)
		keys := map[string]string{}
		for _, e := range md.Entries {
			keys[strings.TrimSuffix(e.FQN, "2")] = e.Tensor.Locs[0].Detail.Key
		}
		if (keys["embed"] == keys["head"]) != (claim != "one of them cast") || keys["embed"] == keys["turned"] || keys["embed"] == keys["copy"] || keys["row"] == keys["embed"] {
			t.Errorf("%s: storages %v", claim, keys)
		}
	}
}
