package tensor

import (
	"fmt"
	"math"
)

// Cast returns t with elements of dtype d: t itself where it has that dtype, else
// a contiguous copy made by [Convert].
func Cast(t *Tensor, d DType) (*Tensor, error) {
	if t.dtype == d {
		return t, nil
	}
	out, err := New(d, t.shape)
	if err != nil {
		return nil, fmt.Errorf("cast %v: %w", t, err)
	}
	if err := Convert(out, t, CastAny); err != nil {
		return nil, err
	}
	return out, nil
}

// CastFloat is [Cast] for floating-point tensors; any other is returned as it is.
func CastFloat(t *Tensor, d DType) (*Tensor, error) {
	if !t.dtype.IsFloat() {
		return t, nil
	}
	return Cast(t, d)
}

// Shape returns sizes as the shape of a tensor, in memory of its own. The error
// is that of [NumElements], and also tells of a size that does not fit an int64.
func Shape[I int | int32 | int64 | uint32 | uint64](sizes []I) ([]int64, error) {
	shape := make([]int64, len(sizes))
	for i, n := range sizes {
		if n > 0 && uint64(n) > math.MaxInt64 {
			return nil, fmt.Errorf("%w: dimension %d of %d", ErrShape, i, n)
		}
		shape[i] = int64(n)
	}
	if _, err := NumElements(shape); err != nil {
		return nil, err
	}
	return shape, nil
}
