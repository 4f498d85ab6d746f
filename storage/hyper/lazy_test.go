package hyper

import (
	"os"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A conjugate that PyTorch had not computed is read as one, whichever part of it.
func TestLazyTensorsAreResolved(t *testing.T) {
	b := must.Get(os.ReadFile("../../internal/torchsave/testdata/conj_dict.pt"))(t)
	s := new(mem.Store)
	must.Get(blob.WriteAll(t.Context(), s, "f", b, nil))(t)
	c := must.Get(openContainer(t.Context(), s, "f"))(t)
	row := []int64{1, 2}
	x := c.tensors["x"]
	at := x.part([]int64{1, 0}, tensor.Box{Offsets: []int64{1, 0}, Sizes: row})
	dst, err := tensor.New(tensor.Complex64, row)
	if err == nil {
		_, err = reading.ReadBox(t.Context(), s, &at, row, tensor.Whole(row), dst, 1<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tensor.Values[complex64](dst); err != nil || got[0] != 5i || got[1] != 6-7i {
		t.Errorf("read %v, %v; want [5i 6-7i]", got, err)
	}
}
