package torchsave

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// reader returns the function that reads b.
func reader(b []byte) ReadFunc {
	return func(ctx context.Context, p []byte, off int64) error {
		if off < 0 || off+int64(len(p)) > int64(len(b)) {
			return fmt.Errorf("read of %d bytes at %d of %d", len(p), off, len(b))
		}
		copy(p, b[off:])
		return context.Cause(ctx)
	}
}

// fromTorch returns a file that PyTorch wrote; testdata/make.py says how.
func fromTorch(t testing.TB, name string) []byte {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("testdata", name)))(t)
	return b
}

// readAll returns the value of a file, with tensors of at most limit bytes.
func readAll(ctx context.Context, read ReadFunc, size, limit int64) (any, error) {
	f, err := Open(ctx, read, size)
	if err != nil {
		return nil, err
	}
	return Materialise(ctx, f.Root, read, limit)
}

// unmarshal returns the value of a file.
func unmarshal(t testing.TB, b []byte) any {
	t.Helper()
	v := must.Get(readAll(t.Context(), reader(b), int64(len(b)), 1<<20))(t)
	return v
}

// of returns a tensor of the values.
func of[E tensor.Element](t testing.TB, shape []int64, values ...E) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.Of(shape, values))(t)
	return x
}

var sameTensor = cmp.Comparer(func(a, b *tensor.Tensor) bool {
	if a == nil || b == nil {
		return a == b
	}
	return tensor.Equal(a, b)
})

func TestViewsOfOneStorage(t *testing.T) {
	whole := make([]float32, 24)
	for i := range whole {
		whole[i] = float32(i)
	}
	base := of(t, []int64{4, 6}, whole...)
	turned, _ := base.Transpose(0, 1)
	want := map[string]any{
		"whole": base, "transposed": turned, "part": of(t, []int64{4}, whole[5:9]...),
		"strided": of[float32](t, []int64{2, 3}, 7, 9, 11, 13, 15, 17), "repeated": of[float32](t, []int64{3, 2}, 2, 2, 2, 2, 2, 2),
		"empty": of[float32](t, []int64{0}), "none": of[float32](t, []int64{0, 3}), "scalar": of[int64](t, nil, 7),
		"grad": of[float32](t, []int64{2}, 1, 1),
	}
	for _, name := range []string{"views.pt", "views_legacy.pt"} {
		b := fromTorch(t, name)
		if diff := cmp.Diff(any(want), unmarshal(t, b), sameTensor); diff != "" {
			t.Errorf("%s (-want +read):\n%s", name, diff)
		}
		f := must.Get(Open(t.Context(), reader(b), int64(len(b))))(t)
		if f.Legacy != (name == "views_legacy.pt") {
			t.Errorf("%s: Legacy = %v", name, f.Legacy)
		}
		root := f.Root.(map[string]any)
		x, y := root["whole"].(*Tensor), root["transposed"].(*Tensor)
		if x.StorageKey != y.StorageKey || x.Offset != y.Offset || !x.Contiguous() || y.Contiguous() || x.End != x.Offset+x.NumBytes() {
			t.Errorf("%s: %+v and %+v; want two views of one storage", name, x, y)
		}
		if !root["grad"].(*Tensor).RequiresGrad || x.RequiresGrad {
			t.Errorf("%s: only \"grad\" requires a gradient", name)
		}
	}
}

func TestTensorKinds(t *testing.T) {
	for _, name := range []string{"kinds.pt", "kinds_legacy.pt"} {
		b := fromTorch(t, name)
		f, err := Open(t.Context(), reader(b), int64(len(b)))
		if err != nil {
			t.Fatalf("%s: Open = %v", name, err)
		}
		for _, p := range f.Root.(*value.Dict).Pairs {
			got := fmt.Sprintf("%T", p.Value)
			switch v := p.Value.(type) {
			case *value.Object:
				got = v.QualifiedName()
			case *Tensor:
				got = fmt.Sprint(v.DType, v.Shape, v.Parameter)
			}
			if want := kinds[p.Key.(string)]; got != want {
				t.Errorf("%s: %s is %s; want %s", name, p.Key, got, want)
			}
		}
	}
}

// kinds has the items of kinds.pt.
var kinds = map[string]string{
	"param": "float32 [3] true", "attr": "float32 [2] false", "fp8": "float8_e4m3fn [2] false", "u16": "uint16 [2] false",
	"conj": "complex64 [1] false", "sparse": "torch._utils._rebuild_sparse_tensor", "quantised": "torch._utils._rebuild_qtensor",
	"storage": "*torchsave.Storage", "tuple": "value.Tuple", "step": "int64",
}

func TestTensorsInsideOfValues(t *testing.T) {
	want := value.Tuple{of[float32](t, []int64{1}, 1), []any{int64(1), int64(2)}}
	if diff := cmp.Diff(any(want), unmarshal(t, fromTorch(t, "tuple.pt")), sameTensor); diff != "" {
		t.Errorf("a tuple (-want +read):\n%s", diff)
	}
	all := unmarshal(t, fromTorch(t, "kinds.pt")).(*value.Dict)
	i := slices.IndexFunc(all.Pairs, func(p value.Pair) bool { return p.Key == any("storage") })
	s, ok := all.Pairs[i].Value.(*value.Object)
	if !ok || s.QualifiedName() != "torch.storage.UntypedStorage" || len(s.Args) != 1 {
		t.Fatalf("an untyped storage = %v; want its class and bytes", all.Pairs[i].Value)
	}
	if x, ok := s.Args[0].(*tensor.Tensor); !ok || x.DType() != tensor.Uint8 || x.NumBytes() != 8 {
		t.Errorf("an untyped storage holds %v; want its bytes", s.Args[0])
	}
}

func TestCheckDetectsChangedBytes(t *testing.T) {
	b := fromTorch(t, "tensor.pt")
	f := must.Get(Open(t.Context(), reader(b), int64(len(b))))(t)
	x := f.Root.(*Tensor)
	for at, want := range map[int64]string{x.Offset: "0", f.PickleOffset: "", x.End: "none"} {
		bad := bytes.Clone(b)
		bad[at] ^= 1
		got := "none"
		err := f.Check(t.Context(), reader(bad), func(key string, err error) { got = key })
		if err != nil || got != want {
			t.Errorf("a bit of byte %d: Check = %v, found %q; want %q", at, err, got, want)
		}
	}
	if err := f.Check(t.Context(), reader(b[:100]), func(string, error) {}); err == nil {
		t.Error("Check of a file that cannot be read = nil")
	}
}
