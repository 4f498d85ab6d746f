package tensor

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// checkElement sees that values pass through a tensor without a copy.
func checkElement[E Element](t *testing.T, want DType, values ...E) {
	t.Helper()
	x, err := Of([]int64{int64(len(values))}, values)
	if err != nil || x.DType() != want {
		t.Fatalf("Of(%T) = %v, %v; want %v", values, x, err, want)
	}
	got, err := Values[E](x)
	if diff := cmp.Diff(values, got); err != nil || diff != "" {
		t.Errorf("Values[%v]: %v (-want +got)\n%s", want, err, diff)
	}
	if &got[0] != &values[0] {
		t.Errorf("Values[%v] is a copy", want)
	}
}

func TestElements(t *testing.T) {
	checkElement(t, Float64, 1.5, -2)
	checkElement[float32](t, Float32, 1.5, -2)
	checkElement[int64](t, Int64, 1, -2)
	checkElement[int32](t, Int32, 1, -2)
	checkElement[int16](t, Int16, 1, -2)
	checkElement[int8](t, Int8, 1, -2)
	checkElement[uint64](t, Uint64, 1, 2)
	checkElement[uint32](t, Uint32, 1, 2)
	checkElement[uint16](t, Uint16, 1, 2)
	checkElement[uint8](t, Uint8, 1, 2)
	checkElement(t, Bool, true, false)
	checkElement[complex64](t, Complex64, 1+2i, -2)
	checkElement[complex128](t, Complex128, 1+2i, -2)
}

func TestElementsAreLittleEndian(t *testing.T) {
	x := must.Value(Of([]int64{2}, []uint16{0x0102, 0x0304}))
	if want := []byte{2, 1, 4, 3}; !bytes.Equal(x.Contents(), want) {
		t.Errorf("Contents() = %v; want %v", x.Contents(), want)
	}
}

func TestOfRefusesOtherLengths(t *testing.T) {
	if _, err := Of([]int64{2, 2}, make([]float32, 3)); !errors.Is(err, ErrShape) {
		t.Errorf("Of(2x2, 3 values): %v; want %v", err, ErrShape)
	}
	if x, err := Of[int64]([]int64{0, 4}, nil); err != nil || x.NumElements() != 0 {
		t.Errorf("Of(0x4, nil) = %v, %v; want an empty tensor", x, err)
	}
}

func TestValuesRefuses(t *testing.T) {
	x := must.Value(New(Float32, []int64{2, 3}))
	if _, err := Values[int32](x); !errors.Is(err, ErrDType) {
		t.Errorf("Values[int32] of float32: %v; want %v", err, ErrDType)
	}
	if _, err := Values[float32](must.Value(x.Transpose(0, 1))); !errors.Is(err, ErrLayout) {
		t.Errorf("Values of a transposed tensor: %v; want %v", err, ErrLayout)
	}
	odd := must.Value(FromBytes(Float32, []int64{1}, make([]byte, 64)[1:5]))
	if _, err := Values[float32](odd); !errors.Is(err, ErrLayout) {
		t.Errorf("Values at an odd address: %v; want %v", err, ErrLayout)
	}
	if _, err := Values[float32](odd.Clone()); err != nil {
		t.Errorf("Values of a clone: %v", err)
	}
	strange := must.Value(FromBytes(Bool, []int64{2}, []byte{1, 2}))
	if _, err := Values[bool](strange); !errors.Is(err, ErrLayout) {
		t.Errorf("Values of a bool that is two: %v; want %v", err, ErrLayout)
	}
}
