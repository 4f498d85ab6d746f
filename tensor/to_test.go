package tensor

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestIsFloatIsByName(t *testing.T) {
	for _, d := range append(DTypes(), Invalid, 99) {
		if want := strings.Contains(d.String(), "float"); d.IsFloat() != want {
			t.Errorf("%v.IsFloat() = %v; want %v", d, d.IsFloat(), want)
		}
	}
}

func TestCast(t *testing.T) {
	src := must.Value(Of([]int64{3}, []float32{1.75, -2, 3}))
	for name, want := range map[string][]float64{"f32": {1.75, -2, 3}, "f16": {1.75, -2, 3}, "i64": {1, -2, 3}, "int32": {1, -2, 3}} {
		got := must.Value(Cast(src, must.Value(LookupDType(name))))
		if v := must.Value(Values[float64](must.Value(Cast(got, Float64)))); !slices.Equal(v, want) {
			t.Errorf("Cast to %s = %v; want %v", name, v, want)
		}
	}
	if must.Value(Cast(src, Float32)) != src {
		t.Error("Cast to the same dtype made a copy; want the tensor itself")
	}
	if _, err := Cast(src, Invalid); !errors.Is(err, ErrDType) {
		t.Errorf("Cast to an invalid dtype = %v; want ErrDType", err)
	}
}

func TestCastFloatLeavesOthers(t *testing.T) {
	floats, ints := must.Value(New(Float32, []int64{2})), must.Value(New(Int64, []int64{2}))
	if got := must.Value(CastFloat(floats, BFloat16)); got.DType() != BFloat16 {
		t.Errorf("CastFloat(float32) = %v; want bfloat16", got)
	}
	for _, other := range []*Tensor{ints, must.Value(New(Bool, nil)), must.Value(New(Complex64, nil))} {
		if got := must.Value(CastFloat(other, BFloat16)); got != other {
			t.Errorf("CastFloat(%v) = %v; want it as it was", other, got)
		}
	}
}

func TestShape(t *testing.T) {
	sizes := []int{2, 0, 3}
	got := must.Value(Shape(sizes))
	sizes[0] = 9
	if !slices.Equal(got, []int64{2, 0, 3}) {
		t.Errorf("Shape = %v; want [2 0 3]", got)
	}
	if _, err := Shape([]int{2, -1}); !errors.Is(err, ErrShape) {
		t.Errorf("Shape([2 -1]) = %v; want ErrShape", err)
	}
	for _, big := range [][]uint64{{math.MaxUint64}, {1 << 32, 1 << 32}} {
		if _, err := Shape(big); !errors.Is(err, ErrShape) {
			t.Errorf("Shape(%v) = %v; want ErrShape", big, err)
		}
	}
}
