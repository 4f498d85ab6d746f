package inspect

import "math"

// scaleBits is the power of two that elements are divided by whose squares are
// too large to be added. No number of elements is too many then, and what
// becomes zero by it is too small to count beside the others.
const scaleBits = 600

// scale returns the same moments, scaled.
func (m moments) scale() moments {
	if !m.scaled {
		m.mean, m.m2, m.scaled = math.Ldexp(m.mean, -scaleBits), math.Ldexp(m.m2, -2*scaleBits), true
	}
	return m
}

// scaledMoments returns the moments of finite elements, scaled, of which
// finiteMoments found m. It overwrites v. The squares of float32 are never too
// large.
func scaledMoments[F float32 | float64](m moments, v []F) moments {
	for i, x := range v {
		v[i] = F(math.Ldexp(float64(x), -scaleBits))
	}
	s, _ := finiteMoments(v)
	m.mean, m.m2, m.scaled = s.mean, s.m2, true
	return m
}

// average returns the mean.
func (m *moments) average() float64 {
	if !m.scaled {
		return m.mean
	}
	// A rounding error may leave the range of float64 at its very end.
	return min(max(math.Ldexp(m.mean, scaleBits), m.min), m.max)
}

// std returns the standard deviation of the population.
func (m *moments) std() float64 {
	out := math.Sqrt(m.m2 / float64(m.n))
	if !m.scaled {
		return out
	}
	return min(math.Ldexp(out, scaleBits), math.MaxFloat64) // half the distance from min to max at most
}

// norm returns the root of the sum of squares, which alone may be infinite: it
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
