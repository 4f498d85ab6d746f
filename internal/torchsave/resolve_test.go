package torchsave

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// lazyShows returns the resolved tensors of lazy.pt; testdata/make.py has the stored numbers.
func lazyShows(t testing.TB) map[string]any {
	square := []int64{2, 2}
	conj := of[complex64](t, square, 1-2i, -3, 5i, 6-7i)
	return map[string]any{
		"conj": conj, "conj128": of[complex128](t, square, 1-2i, -3, 5i, 6-7i),
		"conj_turned": of[complex64](t, square, 1-2i, 5i, -3, 6-7i), "conj_repeated": of[complex64](t, []int64{3}, 5i, 5i, 5i),
		"neg": of[complex64](t, square, -1-2i, 3, 5i, -6-7i), "neg_conj": of[complex64](t, square, -1+2i, 3, -5i, -6+7i),
		"imag": of[float32](t, square, -2, 0, 5, -7), "imag_column": of[float32](t, []int64{2}, 0, -7),
		"half": bits(t, tensor.Float16, 0xbc00, 0x4000), "brain": bits(t, tensor.BFloat16, 0xbf80, 0x4000),
		"int": of[int16](t, []int64{3}, -1, 2, 0), "byte": of[uint8](t, []int64{3}, 255, 254, 0),
		"param": conj, "inside": value.Tuple{conj, int64(1)},
	}
}

// bits returns a tensor of elements of two bytes.
func bits(t testing.TB, d tensor.DType, elements ...uint16) *tensor.Tensor {
	t.Helper()
	var b []byte
	for _, e := range elements {
		b = append(b, byte(e), byte(e>>8))
	}
	x := must.Get(tensor.FromBytes(d, []int64{int64(len(elements))}, b))(t)
	return x
}

// sameNumbers compares by value: PyTorch's zeros have the signs they get.
var sameNumbers = cmp.Comparer(func(a, b *tensor.Tensor) bool {
	return tensor.Equal(positive(a), positive(b))
})

// positive returns the tensor with zeros that have no sign.
func positive(x *tensor.Tensor) *tensor.Tensor {
	if x == nil || kindOf(x.DType()) < kindFloat {
		return x
	}
	x = x.Clone()
	b, _ := x.Bytes()
	n := x.DType().Size()
	if kindOf(x.DType()) == kindComplex {
		n /= 2
	}
	for ; len(b) > 0; b = b[n:] {
		if b[n-1] == 0x80 && len(bytes.Trim(b[:n-1], "\x00")) == 0 {
			b[n-1] = 0
		}
	}
	return x
}

// A conjugate that PyTorch has not computed is one all the same.
func TestLazyTensorsAreResolved(t *testing.T) {
	for _, name := range []string{"lazy.pt", "lazy_legacy.pt"} {
		b := fromTorch(t, name)
		if d := cmp.Diff(any(lazyShows(t)), unmarshal(t, b), sameNumbers); d != "" {
			t.Errorf("%s (-want +read):\n%s", name, d)
		}
		f := must.Get(Open(t.Context(), reader(b), int64(len(b))))(t)
		root := f.Root.(map[string]any)
		for key, want := range map[string][2]bool{"conj": {true, false}, "neg": {false, true}, "neg_conj": {true, true}, "param": {true, false}, "imag": {false, true}} {
			if x := root[key].(*Tensor); [2]bool{x.Conj, x.Neg} != want {
				t.Errorf("%s: %s is Conj %v, Neg %v; want %v", name, key, x.Conj, x.Neg, want)
			}
		}
	}
}

func TestTensorFlags(t *testing.T) {
	yes, no := map[string]any{"neg": true}, map[string]any{"conj": false, "neg": false}
	v2 := func(class *value.Object, n int64, metadata any) any {
		return call("_rebuild_tensor_v2", id("storage", class, "0", "cpu", n), int64(0), ints(n), ints(1), false, hooks(), metadata)
	}
	v3 := func(dtype string, metadata any) any {
		return call("_rebuild_tensor_v3", id("storage", raw, "0", "cpu", int64(24)), int64(0), ints(2), ints(1), false, hooks(), thing("torch", dtype), metadata)
	}
	for name, c := range map[string]struct {
		root any
		want string
	}{
		"nothing":                     {v2(floats, 6, nil), "plain"},
		"an empty dict":               {v2(floats, 6, map[string]any{}), "plain"},
		"flags that are off":          {v2(floats, 6, no), "plain"},
		"an ordered dict":             {v2(floats, 6, &value.Dict{Ordered: true, Pairs: []value.Pair{{Key: "neg", Value: true}}}), "neg"},
		"negatives":                   {v2(floats, 6, yes), "neg"},
		"conjugates":                  {v2(thing("torch", "ComplexFloatStorage"), 3, map[string]any{"conj": true}), "conj"},
		"an untyped storage":          {v3("uint16", yes), "neg"},
		"conjugates of real numbers":  {v2(floats, 6, map[string]any{"conj": true}), "a call"},
		"negatives of truth":          {v2(thing("torch", "BoolStorage"), 24, yes), "a call"},
		"negatives of tiny numbers":   {v3("float8_e4m3fn", yes), "a call"},
		"a flag that we do not know":  {v2(floats, 6, map[string]any{"zero": true}), "a call"},
		"a flag that is an integer":   {v2(floats, 6, map[string]any{"neg": int64(1)}), "a call"},
		"a name that is not a string": {v2(floats, 6, &value.Dict{Pairs: []value.Pair{{Key: int64(1), Value: true}}}), "a call"},
		"something else than a dict":  {v2(floats, 6, "neg"), "a call"},
		"more that we do not know":    {v3("uint16", []any{}), "a call"},
		"known and unknown, together": {v2(floats, 6, map[string]any{"neg": true, "zero": true}), "a call"},
	} {
		b := withStorage(t, c.root)
		f, err := Open(t.Context(), reader(b), int64(len(b)))
		if err != nil {
			t.Errorf("%s: Open = %v", name, err)
			continue
		}
		got := "a call"
		if x, ok := f.Root.(*Tensor); ok {
			got = map[[2]bool]string{{}: "plain", {true, false}: "conj", {false, true}: "neg"}[[2]bool{x.Conj, x.Neg}]
		}
		if got != c.want {
			t.Errorf("%s: Open = %+v, %s; want %s", name, f.Root, got, c.want)
		}
	}
}
