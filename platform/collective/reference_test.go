package collective_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ops are all ways to reduce.
var ops = []collective.Op{collective.Sum, collective.Avg, collective.Max, collective.Min, collective.Prod}

// whole is the type in which the reference computes: exactly, for the small
// numbers that the tests have.
func whole(d tensor.DType) tensor.DType {
	switch {
	case d.IsComplex():
		return tensor.Complex128
	case d.IsInteger() || d == tensor.Bool:
		return tensor.Int64
	}
	return tensor.Float64
}

// numbers returns n elements of rank r that every type can hold or wraps; float32 holds their
// sums and products. Zeros are rare, for products.
func numbers(t testing.TB, d tensor.DType, r, n int) *tensor.Tensor {
	t.Helper()
	values := make([]int64, n)
	for i := range values {
		values[i] = int64((i*7+r*3+i*r)%5) - 2
		if values[i] == 0 && i%4 != 0 {
			values[i] = 1
		}
		if d == tensor.Uint64 {
			values[i] += 2 // the reference has signs
		}
	}
	x := cast(t, of(values...), whole(d))
	if whole(d) == tensor.Complex128 {
		vs, _ := tensor.Values[complex128](x)
		for i := range vs {
			vs[i] += complex(0, float64((i+r)%3-1))
		}
	}
	return cast(t, x, d)
}

func cast(t testing.TB, x *tensor.Tensor, d tensor.DType) *tensor.Tensor {
	t.Helper()
	out := zeros(t, d, x.Shape()...)
	must.Do(t, tensor.Convert(out, x, tensor.CastAny))
	return out
}

// reduced returns the reduction of xs element by element, computed in another way than the
// tested code.
func reduced(t testing.TB, op collective.Op, xs []*tensor.Tensor) *tensor.Tensor {
	t.Helper()
	d := xs[0].DType()
	wide := make([]*tensor.Tensor, len(xs))
	for i, x := range xs {
		wide[i] = cast(t, x, whole(d))
	}
	sum := wide[0].Clone()
	switch whole(d) {
	case tensor.Int64:
		fold(t, op, sum, wide, orderedOp[int64])
	case tensor.Float64:
		fold(t, op, sum, wide, orderedOp[float64])
	default:
		fold(t, op, sum, wide, complexOp)
	}
	if d >= tensor.Float16 && d <= tensor.Float8E8M0FNU {
		sum = cast(t, sum, tensor.Float32) // rounded there first, if it is a mean
	}
	return cast(t, sum, d)
}

func fold[E tensor.Element](t testing.TB, op collective.Op, sum *tensor.Tensor, xs []*tensor.Tensor, step func(op collective.Op, a, b E, last int) E) {
	t.Helper()
	s, err := tensor.Values[E](sum)
	must.Do(t, err)
	for r, x := range xs {
		v, err := tensor.Values[E](x)
		must.Do(t, err)
		last := 0
		if r == len(xs)-1 {
			last = len(xs)
		}
		for i := range s {
			if r == 0 {
				s[i] = step(op, v[i], identity[E](op, v[i]), last)
				continue
			}
			s[i] = step(op, s[i], v[i], last)
		}
	}
}

// identity returns the identity of op, which leaves v as it is.
func identity[E tensor.Element](op collective.Op, v E) E {
	var id E
	switch p := any(&id).(type) {
	case *int64:
		*p = map[collective.Op]int64{collective.Prod: 1}[op]
	case *float64:
		*p = map[collective.Op]float64{collective.Prod: 1}[op]
	case *complex128:
		*p = map[collective.Op]complex128{collective.Prod: 1}[op]
	}
	if op == collective.Max || op == collective.Min {
		return v
	}
	return id
}

func orderedOp[E int64 | float64](op collective.Op, a, b E, last int) E {
	switch op {
	case collective.Max:
		return max(a, b)
	case collective.Min:
		return min(a, b)
	case collective.Prod:
		return a * b
	}
	if op == collective.Avg && last > 0 {
		return (a + b) / E(last)
	}
	return a + b
}

func complexOp(op collective.Op, a, b complex128, last int) complex128 {
	if op == collective.Prod {
		return a * b
	}
	if op == collective.Avg && last > 0 {
		return (a + b) / complex(float64(last), 0)
	}
	return a + b
}
