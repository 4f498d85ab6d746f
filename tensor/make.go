package tensor

import (
	"fmt"
	"math"
)

// Number is a Go type whose values can be counted up.
type Number interface {
	float64 | float32 |
		int64 | int32 | int16 | int8 |
		uint64 | uint32 | uint16 | uint8
}

// Full returns a tensor of dtype d and the given shape whose elements are all v,
// as [Convert] turns a value of v's type into one of d. It has memory of its own.
func Full[E Element](d DType, shape []int64, v E) (*Tensor, error) {
	one, err := Of(nil, []E{v})
	if err != nil {
		return nil, err
	}
	if one, err = Cast(one, d); err != nil {
		return nil, fmt.Errorf("full: %w", err)
	}
	out, err := New(d, shape)
	if err != nil {
		return nil, fmt.Errorf("full: %w", err)
	}
	all, err := one.Expand(shape)
	if err != nil {
		return nil, fmt.Errorf("full: %w", err)
	}
	copyElements(out, all)
	return out, nil
}

// Arange returns the values start, start+step and so on before end as a tensor
// of one dimension, of the dtype whose memory that of E is. Where end does not
// lie in the direction of step there are none. The error wraps [ErrShape] where
// step is zero, a number is not finite, or there are more values than memory can
// hold.
func Arange[E Number](start, end, step E) (*Tensor, error) {
	n, ok := countSteps(start, end, step)
	if !ok {
		return nil, fmt.Errorf("arange from %v to %v by %v: %w", start, end, step, ErrShape)
	}
	out, err := New(dtypeOf[E](), []int64{n})
	if err != nil {
		return nil, fmt.Errorf("arange from %v to %v by %v: %w", start, end, step, err)
	}
	values := elements[E](out.data)
	for i := range values {
		if isInteger[E]() {
			values[i] = start + E(i)*step
		} else {
			values[i] = E(float64(start) + float64(i)*float64(step))
		}
	}
	return out, nil
}

// countSteps returns how many values there are from start to before end, and
// false where that is not a number that a tensor could have.
func countSteps[E Number](start, end, step E) (int64, bool) {
	if step == 0 {
		return 0, false
	}
	if !isInteger[E]() {
		n := math.Ceil((float64(end) - float64(start)) / float64(step))
		if !isFinite(start) || !isFinite(end) || !isFinite(step) || n >= maxAlloc {
			return 0, false
		}
		return int64(max(n, 0)), true
	}
	if step > 0 && end <= start || step < 0 && end >= start {
		return 0, true
	}
	// Modulo 2^64 the differences of all integer types come out right.
	span, by := uint64(end)-uint64(start), uint64(step)
	if step < 0 {
		span, by = -span, -by
	}
	n := (span-1)/by + 1
	return int64(n), n < maxAlloc
}

func isInteger[E Number]() bool { return E(1)/2 == 0 }

// isFinite reports whether v is a number: infinities and NaN less themselves are
// NaN.
func isFinite[E Number](v E) bool { return v-v == 0 }
