package torchdcp

import (
	"os"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// conjugated is a record that PyTorch wrote of a conjugate that it had not
// computed, of the elements 1+2i, -3, -5i, 6+7i, packed or not.
func conjugated(t *testing.T, packed bool) (*archive, *meta.Entry) {
	t.Helper()
	b := must.Get(os.ReadFile("../../internal/torchsave/testdata/conj.pt"))(t)
	loc := meta.Location{File: "f"}
	if packed {
		enc := must.Get(zstd.NewWriter(nil))(t)
		b = enc.EncodeAll(b, nil)
		loc.Detail = &meta.Detail{Transforms: []string{"stream.zstd/1"}}
	}
	loc.Length = int64(len(b))
	a := &archive{store: new(mem.Store), sizes: map[string]int64{"f": loc.Length}, opened: map[recordAt]*torchsave.Tensor{}, good: map[recordAt]bool{}}
	must.Get(blob.WriteAll(t.Context(), a.store, "f", b, nil))(t)
	shape := []int64{2, 2}
	e := &meta.Entry{FQN: "x", Tensor: &meta.Tensor{Shape: shape, Chunks: []tensor.Box{tensor.Whole(shape)}, Locs: []meta.Location{loc}}}
	e.Tensor.DType = tensor.Complex64
	return a, e
}

func TestLazyTensorsAreResolved(t *testing.T) {
	second := tensor.Box{Offsets: []int64{0, 1}, Sizes: []int64{2, 1}}
	want := must.Get(tensor.Of(second.Sizes, []complex128{-3, 6 - 7i}))(t)
	for _, packed := range []bool{false, true} {
		a, e := conjugated(t, packed)
		at := must.Get(a.chunk(t.Context(), e, 0))(t)
		got, err := tensor.New(tensor.Complex128, second.Sizes)
		if err != nil {
			t.Fatal(err)
		}
		if packed {
			_, err = at.Decoder.Decode(t.Context(), second, got, 1<<20)
		} else {
			_, err = reading.ReadBox(t.Context(), a.store, at.Region, e.Tensor.Shape, second, got, 1<<20)
		}
		if err != nil || !same(t, want, got) {
			t.Errorf("packed %v: read %v, %v; want %v", packed, got, err, want)
		}
	}
}

// same compares numbers, whatever the signs of zeros are.
func same(t *testing.T, x, y *tensor.Tensor) bool {
	t.Helper()
	a := must.Get(tensor.Values[complex128](x))(t)
	b := must.Get(tensor.Values[complex128](y))(t)
	return slices.Equal(a, b)
}
