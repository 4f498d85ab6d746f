package inspect

import (
	"bytes"
	"math"

	"github.com/cairn-ckpt/cairn/tensor"
)

// pairNumbers compares blocks of elements. It holds memory: it is for one
// goroutine.
type pairNumbers struct {
	floats   [2][]float64
	ints     [2][]int64
	unsigned [2][]uint64
	complex  [2][]complex128
}

// compare compares two blocks of equally many elements. The index of the first
// difference counts within the block.
func (n *pairNumbers) compare(x, y tensor.DType, p, q []byte, o *CompareOptions) (elementTally, error) {
	t := newElementTally()
	r := rule{o.Rtol, o.Atol, o.NaNDiffers}
	if o.Exact {
		r = rule{}
	}
	if err := n.numbers(x, y, p, q, r, &t); err != nil {
		return t, err
	}
	if o.Exact && x == y {
		t.differing, t.first = differingBits(p, q, x.Size())
	}
	return t, nil
}

// numbers compares elements as numbers of the least kind that holds both.
func (n *pairNumbers) numbers(x, y tensor.DType, p, q []byte, r rule, t *elementTally) error {
	switch {
	case x.IsComplex() || y.IsComplex():
		a, b, err := both(x, y, p, q, &n.complex)
		if err == nil {
			compareComplex(a, b, r, t)
		}
		return err
	case !whole(x) || !whole(y):
		a, b, err := both(x, y, p, q, &n.floats)
		if err == nil {
			compareFloats(a, b, r, t)
		}
		return err
	case x != tensor.Uint64 && y != tensor.Uint64:
		a, b, err := both(x, y, p, q, &n.ints)
		if err == nil {
			compareInts(a, b, r, t)
		}
		return err
	case unsigned(x) && unsigned(y):
		a, b, err := both(x, y, p, q, &n.unsigned)
		if err == nil {
			compareInts(a, b, r, t)
		}
		return err
	}
	return n.mixed(x, y, p, q, r, t)
}

// whole reports whether elements of d are compared as integers: a bool is 0 or 1.
func whole(d tensor.DType) bool { return d.IsInteger() || d == tensor.Bool }

// unsigned reports whether they are never negative.
func unsigned(d tensor.DType) bool { return d >= tensor.Uint64 && d <= tensor.Bool }

// both returns two blocks as values of one type.
func both[E tensor.Element](x, y tensor.DType, p, q []byte, room *[2][]E) (a, b []E, err error) {
	if room[0] == nil {
		room[0], room[1] = make([]E, blockElements), make([]E, blockElements)
	}
	if a, err = converted(x, p, room[0]); err != nil {
		return nil, nil, err
	}
	b, err = converted(y, q, room[1])
	return a, b, err
}

func (n *pairNumbers) room() []int64 {
	if n.ints[0] == nil {
		n.ints = [2][]int64{make([]int64, blockElements), make([]int64, blockElements)}
	}
	return n.ints[0]
}

// rule says when two numbers are equal.
type rule struct {
	rtol, atol float64
	nanDiffers bool
}

// add counts the i-th elements, which are not equal: they differ by d, and b is
// the magnitude that this is relative to. NaNs are not for it.
func (t *elementTally) add(i int, d, b float64, r rule) {
	t.maxAbs = max(t.maxAbs, d)
	if b != 0 {
		rel := d / b
		if math.IsInf(d, 0) {
			rel = d // whatever b is
		}
		t.maxRel = max(t.maxRel, rel)
	}
	if !(d <= r.atol+r.rtol*b) || math.IsInf(d, 0) || math.IsInf(b, 0) {
		t.differ(i)
	}
}

func (t *elementTally) differ(i int) {
	t.differing++
	t.first = min(t.first, int64(i))
}

// compareFloats keeps what it counts out of t, for the sake of speed, and leaves
// to it what is not finite.
func compareFloats(x, y []float64, r rule, t *elementTally) {
	maxAbs, maxRel := t.maxAbs, t.maxRel
	differing, first := int64(0), -1
	y = y[:len(x)]
	for i, a := range x {
		b := y[i]
		if a == b {
			continue
		}
		d, base := math.Abs(a-b), math.Abs(b)
		if !(d <= math.MaxFloat64) {
			t.odd(i, a, b, d, r)
			continue
		}
		if d > maxAbs {
			maxAbs = d
		}
		if d > maxRel*base && base != 0 {
			maxRel = max(maxRel, d/base)
		}
		if d > r.atol+r.rtol*base {
			if differing++; first < 0 {
				first = i
			}
		}
	}
	t.maxAbs, t.maxRel = max(t.maxAbs, maxAbs), max(t.maxRel, maxRel)
	if differing > 0 {
		t.differing += differing
		t.first = min(t.first, int64(first))
	}
}

// odd counts the i-th elements, of which one is not finite.
func (t *elementTally) odd(i int, a, b, d float64, r rule) {
	if d != d {
		t.nan(i, a != a && b != b, r)
		return
	}
	t.add(i, d, math.Abs(b), r)
}

// nan counts the i-th elements, of which one or both are NaN.
func (t *elementTally) nan(i int, both bool, r rule) {
	if both && !r.nanDiffers {
		return
	}
	t.nans++
	t.differ(i)
}

func compareInts[I int64 | uint64](x, y []I, r rule, t *elementTally) {
	for i, a := range x {
		b := y[i]
		switch {
		case a > b:
			t.add(i, float64(uint64(a)-uint64(b)), math.Abs(float64(b)), r)
		case a < b:
			t.add(i, float64(uint64(b)-uint64(a)), math.Abs(float64(b)), r)
		}
	}
}

// mixed compares uint64 with a signed type.
func (n *pairNumbers) mixed(x, y tensor.DType, p, q []byte, r rule, t *elementTally) error {
	signedFirst := y == tensor.Uint64
	if signedFirst {
		x, y, p, q = y, x, q, p
	}
	u, err := valuesOf[uint64](x, p)
	if err != nil {
		return err
	}
	s, err := converted(y, q, n.room())
	if err != nil {
		return err
	}
	for i, a := range u {
		b := s[i]
		if b >= 0 && a == uint64(b) {
			continue
		}
		d, base := float64(a)-float64(b), math.Abs(float64(b))
		if b >= 0 {
			d = float64(max(a, uint64(b)) - min(a, uint64(b)))
		}
		if signedFirst {
			base = float64(a)
		}
		t.add(i, d, base, r)
	}
	return nil
}

func compareComplex(x, y []complex128, r rule, t *elementTally) {
	for i, a := range x {
		b := y[i]
		if a == b {
			continue
		}
		isNaN := func(c complex128) bool { return real(c) != real(c) || imag(c) != imag(c) }
		if isNaN(a) || isNaN(b) {
			t.nan(i, isNaN(a) && isNaN(b), r)
			continue
		}
		t.add(i, math.Hypot(minus(real(a), real(b)), minus(imag(a), imag(b))), math.Hypot(real(b), imag(b)), r)
	}
}

// minus is a-b for numbers of which both may be the same infinity.
func minus(a, b float64) float64 {
	if a == b {
		return 0
	}
	return a - b
}

// differingBits counts elements of so many bytes that are not the same, and
// returns the first of them.
func differingBits(p, q []byte, size int) (n, first int64) {
	first = math.MaxInt64
	for i := 0; i < len(p); i += size {
		if !bytes.Equal(p[i:i+size], q[i:i+size]) {
			n++
			first = min(first, int64(i/size))
		}
	}
	return n, first
}
