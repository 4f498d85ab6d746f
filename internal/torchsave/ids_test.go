package torchsave

import (
	"errors"
	"math"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// id returns a persistent id.
func id(parts ...any) any { return pickle.PersistentID{ID: value.Tuple(parts)} }

// call returns a call of a function of torch._utils.
func call(name string, args ...any) any {
	return &value.Object{Module: "torch._utils", Name: name, Call: true, Args: args}
}

// encode pickles a value that Marshal refuses.
func encode(t testing.TB, v any) string {
	t.Helper()
	b := must.Get(pickle.Encode(v, &pickle.EncodeOptions{Protocol: 2, Allow: func(string, string) bool { return true }}))(t)
	return string(b)
}

// withStorage returns an archive of a value and one storage of 24 bytes, "0".
func withStorage(t testing.TB, root any) []byte {
	t.Helper()
	return archiveOf(t, "data.pkl", encode(t, root), "data/0", "0123456789abcdef01234567", "version", "3\n")
}

var floats, raw = thing("torch", "FloatStorage"), thing("torch.storage", "UntypedStorage")

func ints(n ...int64) value.Tuple {
	out := value.Tuple{}
	for _, i := range n {
		out = append(out, i)
	}
	return out
}

// view2 returns the call that makes a tensor of the storage.
func view2(offset any, size, strides any) any {
	return call("_rebuild_tensor_v2", id("storage", floats, "0", "cpu", int64(6)), offset, size, strides, false, hooks())
}

func TestOpenRefusesInconsistentStorages(t *testing.T) {
	for name, root := range map[string]any{
		"not a tuple":                    pickle.PersistentID{ID: "storage"},
		"of another kind":                id("module", floats, "0", "cpu", int64(6)),
		"a part too few":                 id("storage", floats, "0", "cpu"),
		"a part too many":                id("storage", floats, "0", "cpu", int64(6), nil),
		"a class that is a call":         id("storage", &value.Object{Module: "torch", Name: "FloatStorage", Call: true}, "0", "cpu", int64(6)),
		"a class that is text":           id("storage", "torch.FloatStorage", "0", "cpu", int64(6)),
		"a class of another module":      id("storage", thing("os", "FloatStorage"), "0", "cpu", int64(6)),
		"a class that is no storage":     id("storage", thing("torch", "Tensor"), "0", "cpu", int64(6)),
		"a key that is a number":         id("storage", floats, int64(0), "cpu", int64(6)),
		"a key that is not there":        id("storage", floats, "1", "cpu", int64(6)),
		"a key that leads elsewhere":     id("storage", floats, "../data.pkl", "cpu", int64(6)),
		"a device that is a number":      id("storage", floats, "0", int64(0), int64(6)),
		"too many elements":              id("storage", floats, "0", "cpu", int64(7)),
		"too few elements":               id("storage", floats, "0", "cpu", int64(5)),
		"elements that overflow":         id("storage", floats, "0", "cpu", int64(math.MaxInt64)),
		"a negative number of elements":  id("storage", floats, "0", "cpu", int64(-6)),
		"a number of elements as a text": id("storage", floats, "0", "cpu", "6"),
		"bytes that are not all":         id("storage", raw, "0", "cpu", int64(6)),
	} {
		b := withStorage(t, root)
		if _, err := Open(t.Context(), reader(b), int64(len(b))); !errors.Is(err, errStorage) {
			t.Errorf("%s: Open = %v; want %v", name, err, errStorage)
		}
	}
}

func TestOpenRefusesTensorsOutsideTheirStorage(t *testing.T) {
	many := make([]int64, 65)
	for name, root := range map[string]any{
		"too long":             view2(int64(0), ints(7), ints(1)),
		"too far":              view2(int64(1), ints(6), ints(1)),
		"behind the end":       view2(int64(7), ints(0), ints(1)),
		"before the beginning": view2(int64(-1), ints(1), ints(1)),
		"negative strides":     view2(int64(5), ints(6), ints(-1)),
		"negative sizes":       view2(int64(0), ints(-1), ints(1)),
		"too few strides":      view2(int64(0), ints(2, 3), ints(1)),
		"too many strides":     view2(int64(0), ints(2), ints(3, 1)),
		"sizes that overflow":  view2(int64(0), ints(1<<40, 1<<40), ints(0, 0)),
		"bytes that overflow":  view2(int64(0), ints(1<<62), ints(0)),
		"strides that overflow": view2(int64(0), ints(3, 3),
			ints(math.MaxInt64/2, math.MaxInt64/2)),
		"a huge stride":          view2(int64(0), ints(2), ints(math.MaxInt64)),
		"too many dimensions":    view2(int64(0), ints(many...), ints(many...)),
		"an offset that is text": view2("0", ints(1), ints(1)),
		"sizes that are text":    view2(int64(0), value.Tuple{"1"}, ints(1)),
		"sizes that are one":     view2(int64(0), int64(1), ints(1)),
		"strides that are none":  view2(int64(0), ints(1), nil),
		"wider elements": call("_rebuild_tensor_v3", id("storage", raw, "0", "cpu", int64(24)), int64(0), ints(4), ints(1), false, hooks(),
			thing("torch", "float64")),
	} {
		b := withStorage(t, root)
		if _, err := Open(t.Context(), reader(b), int64(len(b))); !errors.Is(err, errView) {
			t.Errorf("%s: Open = %v; want %v", name, err, errView)
		}
	}
}

func TestOpenAcceptsTensorsInsideTheirStorage(t *testing.T) {
	for name, root := range map[string]any{
		"all of it":                view2(int64(0), ints(6), ints(1)),
		"an empty view at the end": view2(int64(6), ints(0), ints(1)),
		"one at the end":           view2(int64(5), ints(), ints()),
		"one by any stride":        view2(int64(5), ints(1), ints(math.MaxInt64)),
		"none by any stride":       view2(int64(0), ints(0, 5), ints(math.MaxInt64, math.MaxInt64)),
		"one many times":           view2(int64(5), ints(1000), ints(0)),
		"a size":                   view2(int64(0), &value.Object{Module: "torch", Name: "Size", Call: true, Args: value.Tuple{ints(2, 3)}}, ints(3, 1)),
		"the first version":        call("_rebuild_tensor", id("storage", floats, "0", "cpu", int64(6)), int64(0), ints(6), ints(1)),
		"of a GPU": call("_rebuild_tensor_v2", id("storage", thing("torch.cuda", "FloatStorage"), "0", "cuda:0", int64(6)), int64(0), ints(6), ints(1), false,
			hooks()),
	} {
		b := withStorage(t, root)
		f, err := Open(t.Context(), reader(b), int64(len(b)))
		if err != nil {
			t.Errorf("%s: Open = %v", name, err)
			continue
		}
		x, ok := f.Root.(*Tensor)
		if !ok {
			t.Errorf("%s: Open = %T; want a tensor", name, f.Root)
			continue
		}
		if _, err := x.Read(t.Context(), reader(b)); err != nil {
			t.Errorf("%s: Read = %v", name, err)
		}
	}
}

func TestUnsupportedTensorCallsStayObjects(t *testing.T) {
	tensor := thing("torch", "Tensor")
	inner := value.Tuple{id("storage", floats, "0", "cpu", int64(6)), int64(0), ints(6), ints(1), false, hooks()}
	v2 := thing("torch._utils", "_rebuild_tensor_v2")
	from := func(args ...any) any {
		return &value.Object{Module: "torch._tensor", Name: "_rebuild_from_type_v2", Call: true, Args: args}
	}
	for name, root := range map[string]any{
		"a subclass":             from(v2, thing("mylib", "Tensor"), inner, map[string]any{}),
		"another function":       from(thing("os", "system"), tensor, inner, map[string]any{}),
		"too few arguments":      call("_rebuild_tensor_v2", "x"),
		"no storage":             call("_rebuild_tensor_v2", "x", int64(0), ints(6), ints(1), false, hooks()),
		"a storage without type": call("_rebuild_tensor_v2", id("storage", raw, "0", "cpu", int64(24)), int64(0), ints(6), ints(1), false, hooks()),
		"a type that we lack": call("_rebuild_tensor_v3", id("storage", raw, "0", "cpu", int64(24)), int64(0), ints(6), ints(1), false, hooks(),
			thing("torch", "bits1x8")),
		"a parameter without a tensor": call("_rebuild_parameter", nil, true, hooks()),
		"an unknown function":          call("_rebuild_wrapper_subclass", inner),
	} {
		b := withStorage(t, root)
		f, err := Open(t.Context(), reader(b), int64(len(b)))
		if err != nil {
			t.Errorf("%s: Open = %v", name, err)
			continue
		}
		if o, ok := f.Root.(*value.Object); !ok || !o.Call || len(o.Args) == 0 {
			t.Errorf("%s: Open = %+v; want the call as it is", name, f.Root)
		}
	}
	b := withStorage(t, from(v2, tensor, inner, map[string]any{"note": "x"}))
	f := must.Get(Open(t.Context(), reader(b), int64(len(b))))(t)
	if _, ok := f.Root.(*Tensor); !ok {
		t.Errorf("a plain tensor with attributes: Open = %+v; want a tensor", f.Root)
	}
}
