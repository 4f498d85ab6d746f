package inspect

import (
	"math"
	"slices"
)

// moments accumulate elements. All fields except the counts cover the finite
// elements only and are undefined if n is zero. The conversions round products
// before they are added, so that all processors compute the same bits.
type moments struct {
	n        int64 // finite elements
	mean, m2 float64
	// scaled means that mean and m2 are computed from the elements divided by
	// 1<<scaleBits. It is set only if they would overflow otherwise.
	scaled              bool
	min, max            float64
	zeros               int64
	nan, posInf, negInf int64
}

// merge returns the moments of both. m2 is the sum of squared distances from the
// mean, which adds up without the cancellation of sums of squares.
func (m moments) merge(o moments) moments {
	out := moments{
		n: m.n + o.n, zeros: m.zeros + o.zeros, nan: m.nan + o.nan, posInf: m.posInf + o.posInf, negInf: m.negInf + o.negInf,
	}
	switch {
	case o.n == 0:
		out.mean, out.m2, out.scaled, out.min, out.max = m.mean, m.m2, m.scaled, m.min, m.max
		return out
	case m.n == 0:
		out.mean, out.m2, out.scaled, out.min, out.max = o.mean, o.m2, o.scaled, o.min, o.max
		return out
	}
	if m.scaled != o.scaled {
		m, o = m.scale(), o.scale()
	}
	part := float64(o.n) / float64(out.n)
	delta := o.mean - m.mean
	out.mean = m.mean + float64(delta*part)
	out.m2 = m.m2 + o.m2 + float64(delta*delta*float64(m.n)*part)
	if !isFinite(out.m2) && !m.scaled { // it is not finite if the mean is not
		return m.scale().merge(o.scale())
	}
	out.scaled = m.scaled
	out.min, out.max = min(m.min, o.min), max(m.max, o.max)
	return out
}

// pairwise merges a sequence of moments like a balanced tree, so that rounding
// errors and memory grow with the logarithm of their number.
type pairwise struct {
	parts  []moments
	levels []int // number of merges in each part
}

func (p *pairwise) add(m moments) {
	level := 0
	for n := len(p.parts); n > 0 && p.levels[n-1] == level; n-- {
		m = p.parts[n-1].merge(m)
		p.parts, p.levels = p.parts[:n-1], p.levels[:n-1]
		level++
	}
	p.parts, p.levels = append(p.parts, m), append(p.levels, level)
}

// total returns the moments of everything that was added.
func (p *pairwise) total() moments {
	var out moments
	for _, m := range slices.Backward(p.parts) {
		out = m.merge(out)
	}
	return out
}

// momentsOf returns the moments of a block. finite is a buffer of the same
// length.
func momentsOf(v, finite []float64) moments {
	if len(v) == 0 {
		return moments{}
	}
	if m, ok := finiteMoments(v); ok {
		return m
	}
	var out moments
	kept := finite[:0]
	for _, x := range v {
		switch {
		case x != x:
			out.nan++
		case math.IsInf(x, 1):
			out.posInf++
		case math.IsInf(x, -1):
			out.negInf++
		default:
			kept = append(kept, x)
		}
	}
	if len(kept) > 0 {
		m, ok := finiteMoments(kept)
		if !ok {
			m = scaledMoments(m, kept)
		}
		out = out.merge(m)
	}
	return out
}

// finiteMoments returns the moments of at least one element. It returns false if
// an element is not finite or if the squares overflow; then the mean and m2 are
// undefined.
//
// One pass is enough: distances are taken from the first element. If that is far
// from the others, it adds its own distance to the variance, so the cancellation
// is bounded by a factor of the block's length.
func finiteMoments(v []float64) (moments, bool) {
	first := v[0]
	lo, hi := v[0], v[0]
	var s0, s1, q0, q1 float64
	zeros, n := 0, float64(len(v))
	for ; len(v) >= 2; v = v[2:] { // two chains of additions run in parallel
		a, b := v[0], v[1]
		if a < lo {
			lo = a
		}
		if a > hi {
			hi = a
		}
		if b < lo {
			lo = b
		}
		if b > hi {
			hi = b
		}
		zeros += count(a == 0) + count(b == 0)
		da, db := a-first, b-first
		s0, s1 = s0+da, s1+db
		q0, q1 = q0+float64(da*da), q1+float64(db*db)
	}
	for _, a := range v {
		lo, hi = min(lo, a), max(hi, a)
		zeros += count(a == 0)
		d := a - first
		s0, q0 = s0+d, q0+float64(d*d)
	}
	s, q := s0+s1, q0+q1
	m := moments{n: int64(n), zeros: int64(zeros), min: lo, max: hi}
	m.mean, m.m2 = first+s/n, max(0, q-float64(s*s)/n)
	return m, isFinite(q) && isFinite(s*s)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// scaleBits is the power of two by which elements are divided if their squares
// would overflow. Then no number of elements overflows, and elements that become
// zero are negligible.
const scaleBits = 600

// scale returns the same moments in scaled form.
func (m moments) scale() moments {
	if !m.scaled {
		m.mean, m.m2, m.scaled = math.Ldexp(m.mean, -scaleBits), math.Ldexp(m.m2, -2*scaleBits), true
	}
	return m
}

// scaledMoments returns the scaled moments of finite elements, given their result
// m of finiteMoments. It overwrites v.
func scaledMoments(m moments, v []float64) moments {
	for i, x := range v {
		v[i] = math.Ldexp(x, -scaleBits)
	}
	s, _ := finiteMoments(v)
	m.mean, m.m2, m.scaled = s.mean, s.m2, true
	return m
}

func (m *moments) average() float64 {
	if !m.scaled {
		return m.mean
	}
	// Rounding may overflow at the limit of float64.
	return min(max(math.Ldexp(m.mean, scaleBits), m.min), m.max)
}

// std returns the standard deviation of the population.
func (m *moments) std() float64 {
	out := math.Sqrt(m.m2 / float64(m.n))
	if !m.scaled {
		return out
	}
	return min(math.Ldexp(out, scaleBits), math.MaxFloat64) // at most half the distance from min to max
}

// norm returns the root of the sum of squares. It may be infinite, because it
// grows with the number of elements.
func (m *moments) norm() float64 {
	out := math.Sqrt(m.m2 + float64(m.mean*m.mean*float64(m.n)))
	if m.scaled {
		return math.Ldexp(out, scaleBits)
	}
	if !isFinite(out) {
		s := m.scale()
		return s.norm()
	}
	return out
}

func isFinite(x float64) bool { return x-x == 0 }
