package tensor

import (
	"errors"
	"io/fs"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestFull(t *testing.T) {
	got := must.Value(Full(BFloat16, []int64{2, 3}, 1.5))
	back := must.Value(Values[float32](must.Value(Cast(got, Float32))))
	if want := []float32{1.5, 1.5, 1.5, 1.5, 1.5, 1.5}; got.DType() != BFloat16 || !slices.Equal(back, want) {
		t.Errorf("Full(bfloat16, 2x3, 1.5) = %v %v; want %v", got, back, want)
	}
	if v := must.Value(Values[int64](must.Value(Full(Int64, nil, int64(math.MaxInt64))))); v[0] != math.MaxInt64 {
		t.Errorf("Full(int64, scalar, MaxInt64) = %d", v[0])
	}
	if mem, ok := got.Bytes(); !ok || len(mem) != 12 {
		t.Errorf("Full has %d bytes of its own, contiguous %v; want 12", len(mem), ok)
	}
	if e := must.Value(Full(Float32, []int64{0, 4}, true)); e.NumElements() != 0 {
		t.Errorf("Full of nothing has %d elements", e.NumElements())
	}
}

func TestFullRefuses(t *testing.T) {
	if _, err := Full(Invalid, []int64{2}, 1.0); !errors.Is(err, ErrDType) {
		t.Errorf("Full(invalid) = %v; want ErrDType", err)
	}
	for _, shape := range [][]int64{{-1}, {1 << 40, 1 << 40}, {1 << 60}} {
		if _, err := Full(Float32, shape, 1.0); !errors.Is(err, ErrShape) {
			t.Errorf("Full(%v) = %v; want ErrShape", shape, err)
		}
	}
}

func checkRange[E Number](t *testing.T, start, end, step E, want ...E) {
	t.Helper()
	got, err := Arange(start, end, step)
	if err != nil {
		t.Errorf("Arange(%v, %v, %v) = %v", start, end, step, err)
		return
	}
	if v := must.Value(Values[E](got)); !slices.Equal(v, want) {
		t.Errorf("Arange(%v, %v, %v) = %v; want %v", start, end, step, v, want)
	}
}

func TestArange(t *testing.T) {
	checkRange[int64](t, 0, 5, 1, 0, 1, 2, 3, 4)
	checkRange[int64](t, 1, 10, 4, 1, 5, 9)
	checkRange[int64](t, 5, 0, -2, 5, 3, 1)
	checkRange[int32](t, 5, 0, 1)
	checkRange[int32](t, 0, 5, -1)
	checkRange[int8](t, -128, 127, 100, -128, -28, 72)
	checkRange[int8](t, 127, -128, -128, 127, -1)
	checkRange[uint8](t, 250, 255, 3, 250, 253)
	checkRange[int64](t, math.MinInt64, math.MaxInt64, math.MaxInt64, math.MinInt64, -1, math.MaxInt64-1)
	checkRange(t, 0, 1, 0.25, 0, 0.25, 0.5, 0.75)
	step := 0.3
	checkRange(t, 0, 1, step, 0, step, 2*step, 3*step)
	checkRange[float32](t, 1, 0, -0.5, 1, 0.5)
}

func TestArangeRefuses(t *testing.T) {
	for _, c := range [][3]float64{
		{0, 1, 0}, {0, math.Inf(1), 1}, {math.Inf(1), 0, 1}, {0, 1, math.Inf(1)}, {math.NaN(), 1, 1}, {0, 1, math.NaN()},
	} {
		if r, err := Arange(c[0], c[1], c[2]); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Arange(%v) = %v, %v; want fs.ErrInvalid", c, r, err)
		}
	}
	if r, err := Arange[int64](3, 1, 0); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "step of zero") {
		t.Errorf("Arange by 0 = %v, %v; want fs.ErrInvalid that names the step", r, err)
	}
	if r, err := Arange(0, 1, 1e-300); !errors.Is(err, ErrShape) {
		t.Errorf("Arange by 1e-300 = %v, %v; want ErrShape", r, err)
	}
	for _, c := range [][3]int64{{math.MinInt64, math.MaxInt64, 1}, {math.MaxInt64, math.MinInt64, -1}} {
		if r, err := Arange(c[0], c[1], c[2]); !errors.Is(err, ErrShape) {
			t.Errorf("Arange(%v) = %v, %v; want ErrShape", c, r, err)
		}
	}
}
