package torchdcp

import (
	"os"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// conjugated is a record that PyTorch wrote of a conjugate that it had not
// computed, of the elements 1+2i, -3, -5i, 6+7i, packed or not.
func conjugated(t *testing.T, packed bool) (*archive, *meta.Entry) {
	t.Helper()
	b, err := os.ReadFile("../../internal/torchsave/testdata/conj.pt")
	if err != nil {
		t.Fatal(err)
	}
	loc := meta.Location{File: "f"}
	if packed {
		enc, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		b = enc.EncodeAll(b, nil)
		loc.Detail = &meta.Detail{Transforms: []string{"stream.zstd/1"}}
	}
	loc.Length = int64(len(b))
	a := &archive{store: new(mem.Store), sizes: map[string]int64{"f": loc.Length}, opened: map[place]*torchsave.Tensor{}}
	if _, err := blob.WriteAll(t.Context(), a.store, "f", b, nil); err != nil {
		t.Fatal(err)
	}
	shape := []int64{2, 2}
	e := &meta.Entry{FQN: "x", Tensor: &meta.Tensor{Shape: shape, Chunks: []tensor.Box{tensor.Whole(shape)}, Locs: []meta.Location{loc}}}
	e.Tensor.DType = tensor.Complex64
	return a, e
}

func TestLazyTensorsAreResolved(t *testing.T) {
	second := tensor.Box{Offsets: []int64{0, 1}, Sizes: []int64{2, 1}}
	want, err := tensor.Of(second.Sizes, []complex128{-3, 6 - 7i})
	if err != nil {
		t.Fatal(err)
	}
	for _, packed := range []bool{false, true} {
		a, e := conjugated(t, packed)
		at, err := a.chunk(t.Context(), e, 0)
		if err != nil {
			t.Fatal(err)
		}
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
	a, err := tensor.Values[complex128](x)
	if err != nil {
		t.Fatal(err)
	}
	b, err := tensor.Values[complex128](y)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Equal(a, b)
}
