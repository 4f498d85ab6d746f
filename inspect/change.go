package inspect

import (
	"math"

	"github.com/cairn-ckpt/cairn/tensor"
)

// products accumulate two tensors as vectors a and b: the sums of a·a, b·b, a·b and of the
// squares of b-a. They cover the elements that are finite on both sides.
type products struct {
	aa, bb, ab, dd float64
	// scaled means that the elements were divided by 1<<scaleBits. It is set only if the
	// sums would overflow otherwise.
	scaled bool
	odd    int64 // elements that are not finite on one side or on both
}

// add adds o. The order of additions determines the last bits of the sums.
func (s *products) add(o *products) {
	x, y := *s, *o
	if x.scaled != y.scaled {
		x, y = x.scale(), y.scale()
	}

	out := products{x.aa + y.aa, x.bb + y.bb, x.ab + y.ab, x.dd + y.dd, x.scaled, x.odd + y.odd}
	if !out.finite() && !out.scaled {
		x, y = x.scale(), y.scale()
		out = products{x.aa + y.aa, x.bb + y.bb, x.ab + y.ab, x.dd + y.dd, true, x.odd + y.odd}
	}
	*s = out
}

func (s *products) finite() bool { return isFinite(s.aa + s.bb + s.ab + s.dd) }

// scale returns the same sums in scaled form.
func (s products) scale() products {
	if s.scaled {
		return s
	}
	by := func(x float64) float64 { return math.Ldexp(x, -2*scaleBits) }
	return products{by(s.aa), by(s.bb), by(s.ab), by(s.dd), true, s.odd}
}

// change returns the results.
func (s *products) change() *Change {
	none := Number(math.NaN())
	out := &Change{RelL2: none, Cosine: none, NonFinite: s.odd}
	switch {
	case s.dd == 0:
		out.RelL2 = 0
	case s.aa > 0:
		out.RelL2 = Number(math.Sqrt(s.dd / s.aa))
	}

	switch {
	case s.aa == 0 || s.bb == 0:
	case s.dd == 0:
		out.Cosine = 1
	default:
		out.Cosine = Number(min(max(s.ab/math.Sqrt(s.aa)/math.Sqrt(s.bb), -1), 1))
	}

	return out
}

// change returns the result for a pair of tensors. It adds the slabs in their order,
// whatever order they arrived in.
func (p *pairItem) change() *Change {
	var sum products
	for i := range len(p.vector) {
		sum.add(p.vector[i])
	}
	p.vector = nil
	return sum.change()
}

// vectors adds two blocks of elements to the products. same means that they are equal.
func (w *compareWorker) vectors(x, y tensor.DType, p, q []byte, same bool, to *products) error {
	var s products
	var err error
	switch {
	case x.IsComplex() || y.IsComplex():
		err = compareAs(x, y, p, q, &w.complex, func(a, b []complex128) { s = complexProducts(a, b) })
	case same: // one conversion is enough
		err = compareAs(x, y, p, nil, &w.floats, func(a, _ []float64) { s = productsOf(a, a) })
	default:
		err = compareAs(x, y, p, q, &w.floats, func(a, b []float64) { s = productsOf(a, b) })
	}

	to.add(&s)
	return err
}

// productsOf returns the products of two blocks. The conversions round products before they
// are added, so that all processors compute the same bits.
func productsOf(a, b []float64) products {
	var s products
	b = b[:len(a)]
	for i, x := range a {
		y := b[i]
		d := y - x
		s.aa += float64(x * x)
		s.bb += float64(y * y)
		s.ab += float64(x * y)
		s.dd += float64(d * d)
	}

	if s.finite() {
		return s
	}
	return oddProducts(a, b)
}

// oddProducts is productsOf for blocks with elements or products that are not finite.
func oddProducts(a, b []float64) products {
	var sum products
	for i, x := range a {
		y := b[i]
		if !isFinite(x) || !isFinite(y) {
			sum.odd++
			continue
		}
		one := pair(x, y)
		sum.add(&one)
	}

	return sum
}

// pair returns the products of two finite numbers.
func pair(x, y float64) products {
	d := y - x
	s := products{aa: x * x, bb: y * y, ab: x * y, dd: d * d}
	if s.finite() {
		return s
	}
	x, y = math.Ldexp(x, -scaleBits), math.Ldexp(y, -scaleBits)
	d = y - x
	return products{x * x, y * y, x * y, d * d, true, 0}
}

// complexProducts is productsOf for complex numbers, which are vectors of their parts.
func complexProducts(a, b []complex128) products {
	var sum products
	for i, x := range a {
		y := b[i]
		if !isFinite(real(x)) || !isFinite(imag(x)) || !isFinite(real(y)) || !isFinite(imag(y)) {
			sum.odd++
			continue
		}
		for _, one := range []products{pair(real(x), real(y)), pair(imag(x), imag(y))} {
			sum.add(&one)
		}
	}

	return sum
}
