package torchfile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// real returns a store with a file that PyTorch wrote; see testdata/make.py.
func real(t *testing.T, name string) blob.Store {
	t.Helper()
	b := must.Get(os.ReadFile("testdata/" + name))(t)
	s := new(mem.Store)
	putBytes(t, s, name, b)
	return s
}

// tensorsOf prints the tensors of a checkpoint.
func tensorsOf(md *meta.Metadata) []string {
	var out []string
	for _, e := range md.Entries {
		if e.Tensor != nil {
			out = append(out, fmt.Sprintf("%s %v%v", e.FQN, e.Tensor.DType, e.Tensor.Shape))
		}
	}
	return out
}

// The tensors inside of modules and objects are entries.
func TestTensorsInsideOfObjects(t *testing.T) {
	for name, want := range map[string][]string{
		"linear.pt": {"value.weight float32[2 2]"},
		"shared.pt": {
			"value._modules.ab.bias float32[2]", "value._modules.ab.weight float32[2 2]", "value._modules.c._modules.0.bias float32[2]",
			"value._modules.c._modules.0.weight float32[2 2]", "value._modules.c._modules.1.weight float32[3 2]",
		},
		"slots.pt":         {"slots.w float32[2]"},
		"slots_legacy.pt":  {"slots.w float32[2]"},
		"module_legacy.pt": {"value._modules.inner.weight float32[2]", "value.weight float32[2]"},
		"odd.pt":           {"value.(1, a) float32[1]", "value.1.5 float32[1]", "value.None float32[1]", "value.True float32[1]"},
		"odd_inside.pt":    {"odd.(1, a) float32[1]", "odd.1.5 float32[1]", "odd.None float32[1]", "odd.True float32[1]"},
		"trainer.pt": {
			"value.model._modules.embed.weight float32[3 2]", "value.model._modules.fc.bias float32[3]",
			"value.model._modules.fc.weight float32[3 2]", "value.model._modules.norm.bias float32[3]",
			"value.model._modules.norm.num_batches_tracked int64[]", "value.model._modules.norm.running_mean float32[3]",
			"value.model._modules.norm.running_var float32[3]", "value.model._modules.norm.weight float32[3]",
			"value.model.mask bool[2]", "value.model.scale float32[1]", "value.state.ema.0 float32[2]", "value.state.ema.1.0 float32[1]",
		},
	} {
		s := real(t, name)
		ck, err := torchfile.Format{File: name}.Open(t.Context(), s)
		if err != nil {
			t.Fatalf("%s: Open = %v", name, err)
		}
		md, err := ck.Metadata(t.Context())
		if err == nil {
			err = md.Validate()
		}
		if d := cmp.Diff(want, tensorsOf(md)); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
		if rep, err := ck.Verify(t.Context(), nil); err != nil || len(rep.Problems) > 0 {
			t.Errorf("%s: Verify = %+v, %v", name, rep, err)
		}
		// A load returns the value that package torchsave reads as a whole.
		state, _ := load(t, s, name)
		whole, loaded := root(t, s, name), any(state)
		if _, ok := whole.(map[string]any); !ok {
			loaded = state["value"]
		}
		if d := cmp.Diff(whole, loaded, cmp.Comparer(tensor.Equal), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: (-read whole +loaded):\n%s", name, d)
		}
	}
}

// Describing a large module reads no tensor.
func TestOpenReadsNoTensorsOfObjects(t *testing.T) {
	const n = 4 << 20
	x := must.Get(tensor.New(tensor.Float32, []int64{n / 4}))(t)
	var layers []value.Pair
	for i := range 8 {
		y := x.Clone()
		layers = append(layers, value.Pair{Key: value.Tuple{int64(i)}, Value: value.Tuple{y}})
	}
	m := fault.New(holding(t, &value.Dict{Pairs: layers}))
	ck := must.Get(torchfile.Format{File: "x.pt"}.Open(t.Context(), m))(t)
	md, err := ck.Metadata(t.Context())
	if err != nil || len(md.Entries) != 9 {
		t.Fatalf("Metadata = %v, %v", md.Names(), err)
	}
	if got := m.Ops().Bytes(fault.Read); got > 32<<10 {
		t.Errorf("listing read %d bytes of %d; want a few KiB", got, 8*n)
	}
	if e, _ := md.Find("value"); e.Bytes == nil || e.Bytes.Size > 4<<10 {
		t.Errorf("the value is %+v; want a small one that refers to its tensors", e.Bytes)
	}
}

// Tensors inside of values are written at their places.
func TestTensorsInsideOfValuesRoundTrip(t *testing.T) {
	type m = map[string]any
	x, y := vector(t, 1, 2), vector(t, 3)
	want := m{"a": value.Tuple{x, m{"b": y}, "c"}, "d": dict(nil, x, value.Tuple{int64(1)}, y), "w": x, "l": []any{x, value.Tuple{y}}}
	s := holding(t, want)
	for _, flat := range []bool{false, true} {
		out := new(mem.Store)
		if err := resave(t, s, storagetest.Setup{Format: torchfile.Format{File: "y.pt", Flat: flat}}.At(out)); err != nil {
			t.Fatalf("Save = %v", err)
		}
		want := want
		if flat {
			want = m{"a": want["a"], "d": want["d"], "w": x, "l.0": x, "l.1": value.Tuple{y}}
		}
		if d := cmp.Diff(any(want), root(t, out, "y.pt"), cmp.Comparer(tensor.Equal)); d != "" {
			t.Errorf("flat %v: (-want +got):\n%s", flat, d)
		}
	}
}

// resave writes the entries of x.pt again, values with their references, as a
// conversion does.
func resave(t *testing.T, s blob.Store, p storagetest.Place, without ...string) error {
	t.Helper()
	ck := must.Get(torchfile.Format{File: "x.pt"}.Open(t.Context(), s))(t)
	md, err := ck.Metadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := p.Writer()
	if err := w.SetUp(t.Context(), storage.Session{Size: 1, Coordinator: true}); err != nil {
		return err
	}
	defer w.Abort(t.Context())
	save, data := &plan.SavePlan{}, resolved{}
	kept := *md
	kept.Entries = slices.DeleteFunc(slices.Clone(md.Entries), func(e meta.Entry) bool { return slices.Contains(without, e.FQN) })
	for i := range kept.Entries {
		e := &kept.Entries[i]
		it := plan.WriteItem{Info: &plan.Info{FQN: e.FQN, Path: e.Path}, Kind: plan.KindBytes}
		if e.Tensor != nil {
			it.Info.Properties, it.Info.Shape, it.Kind, it.Box = e.Tensor.Properties, e.Tensor.Shape, plan.KindTensor, tensor.Whole(e.Tensor.Shape)
			x := must.Get(tensor.New(e.Tensor.DType, e.Tensor.Shape))(t)
			must.Do(t, storagetest.Load(t.Context(), at(s, "x.pt"), plan.State{e.FQN: x}))
			data[e.FQN] = plan.Data{Tensor: x}
			e.Tensor = &meta.Tensor{Properties: e.Tensor.Properties, Shape: e.Tensor.Shape, Chunks: e.Tensor.Chunks}
		} else {
			it.Info.Codec, it.Size = e.Bytes.Codec, e.Bytes.Size
			data[e.FQN] = plan.Data{Bytes: e.Bytes.Inline}
			e.Bytes = &meta.Bytes{Codec: e.Bytes.Codec, Size: e.Bytes.Size}
		}
		save.Items = append(save.Items, it)
	}
	if save, err = w.PrepareLocalPlan(t.Context(), save); err != nil {
		return err
	}
	res, err := w.WriteData(t.Context(), save, data)
	if err != nil {
		return err
	}
	return w.Finish(t.Context(), &kept, []*storage.WriteResults{res})
}

type resolved map[string]plan.Data

func (r resolved) Resolve(it *plan.WriteItem) (plan.Data, error) { return r[it.FQN()], nil }

// A value is not written without its tensors.
func TestWriterRefusesRefsToUnwrittenTensors(t *testing.T) {
	s := holding(t, map[string]any{"a": value.Tuple{vector(t, 1)}})
	err := resave(t, s, at(new(mem.Store), "y.pt"), "a.0")
	if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), `"a.0"`) {
		t.Errorf("Save = %v; want %v, naming the tensor", err, storage.ErrNotRepresentable)
	}
}

// Tensors of one name each that are one tensor share a storage.
func TestTiedTensorsRoundTrip(t *testing.T) {
	x := vector(t, 1, 2, 3)
	same := vector(t, 1, 2, 3)
	s := new(mem.Store)
	must.Do(t, save(t, at(s, "x.pt"), plan.State{"embed": x, "head": x, "copy": same, "m": map[string]any{"w": x}}))
	b := must.Get(blob.ReadAll(t.Context(), s, "x.pt", 1<<20))(t)
	read := func(_ context.Context, p []byte, off int64) error { copy(p, b[off:]); return nil }
	f := must.Get(torchsave.Open(t.Context(), read, int64(len(b))))(t)
	keys := map[string][]string{}
	add := func(name string, v any) {
		k := v.(*torchsave.Tensor).StorageKey
		keys[k] = append(keys[k], name)
		slices.Sort(keys[k])
	}
	for name, v := range f.Root.(map[string]any) {
		if m, ok := v.(map[string]any); ok {
			name, v = "m.w", m["w"]
		}
		add(name, v)
	}
	var got []string
	for _, names := range keys {
		got = append(got, strings.Join(names, " "))
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{"copy", "embed head m.w"}, got); d != "" {
		t.Errorf("storages (-want +got):\n%s", d)
	}
}

// The tensors of a module that stands at two places are the same under both names.
func TestModulesAtSeveralPlacesAreTied(t *testing.T) {
	ck := must.Get(torchfile.Format{File: "shared.pt"}.Open(t.Context(), real(t, "shared.pt")))(t)
	a, _, err := ck.Find(t.Context(), "value._modules.ab.weight")
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := ck.Find(t.Context(), "value._modules.c._modules.0.weight")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(a.Tensor, b.Tensor); d != "" {
		t.Errorf("two places of one module (-first +second):\n%s", d)
	}
}
