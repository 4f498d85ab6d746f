package torchfile_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Conjugates and negatives that PyTorch had not computed when it saved them are read as their
// computed values, just as package torchsave reads them whole.
func TestLazyTensorsAreResolved(t *testing.T) {
	for _, name := range []string{"lazy.pt", "lazy_legacy.pt"} {
		b := must.Get(os.ReadFile("../../internal/torchsave/testdata/" + name))(t)
		s := new(mem.Store)
		putBytes(t, s, name, b)
		got, md := load(t, s, name)
		if d := cmp.Diff(root(t, s, name), any(got), cmp.Comparer(tensor.Equal)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if e, ok := md.Find("conj"); !ok || e.Tensor == nil || e.Tensor.DType != tensor.Complex64 {
			t.Errorf("%s: conj is %+v; want a tensor", name, e)
		}
		x, err := tensor.Values[complex64](got["conj"].(*tensor.Tensor))
		if err != nil || x[0] != 1-2i || x[3] != 6-7i {
			t.Errorf("%s: conj = %v, %v; want the conjugates", name, x, err)
		}
	}
}
