package inspect

import "math"

// The scales of a histogram.
const (
	// ScaleLinear has buckets of equal width between the lowest and the highest
	// finite element.
	ScaleLinear = "linear"
	// ScaleLog2 has buckets of magnitudes, all with the same number of powers of
	// two.
	ScaleLog2 = "log2"
)

// Histogram counts finite elements by value. Bucket i counts elements x with
// Edges[i] <= x < Edges[i+1]; the last bucket of a linear scale includes its
// upper edge. If all elements are equal, there is one bucket of width zero. Zeros
// are in no bucket of the log2 scale.
type Histogram struct {
	Scale  string   `json:"scale"`
	Edges  []Number `json:"edges"`
	Counts []int64  `json:"counts"`
}

// linear counts elements in buckets of equal width.
type linear struct {
	edges  []float64
	counts []int64
	// The bucket of x is (x·half − low)·scale, except for rounding.
	half, low, scale float64
}

// newLinear returns n buckets between two finite numbers.
func newLinear(lo, hi float64, n int) *linear {
	if lo == hi {
		return &linear{edges: []float64{lo, hi}, counts: make([]int64, 1), half: 1, low: lo}
	}
	l := &linear{edges: make([]float64, n+1), counts: make([]int64, n), half: 1}
	if math.IsInf(hi-lo, 0) {
		l.half = 0.5
	}
	l.low = lo * l.half
	width := (float64(hi*l.half) - l.low) / float64(n)
	for i := range l.edges {
		l.edges[i] = (l.low + float64(float64(i)*width)) / l.half
	}
	l.edges[n] = hi
	l.scale = float64(n) / (hi*l.half - l.low)
	if math.IsInf(l.scale, 0) { // so narrow that edges must be compared
		l.scale = 0
	}
	return l
}

func (l *linear) empty() *linear {
	out := *l
	out.counts = make([]int64, len(l.counts))
	return &out
}

func (l *linear) add(o *linear) {
	for i, n := range o.counts {
		l.counts[i] += n
	}
}

// bucket returns the bucket of a finite number between the outer edges.
func (l *linear) bucket(x float64) int {
	last := len(l.counts) - 1
	i := min(int((x*l.half-l.low)*l.scale), last)
	for i > 0 && x < l.edges[i] {
		i--
	}
	for i < last && x >= l.edges[i+1] {
		i++
	}
	return i
}

// count counts n elements x, if x is finite.
func (l *linear) count(x float64, n int64) {
	if x >= l.edges[0] && x <= l.edges[len(l.counts)] {
		l.counts[l.bucket(x)] += n
	}
}

// countAll counts the finite elements of v.
func (l *linear) countAll(v []float64) {
	edges, counts := l.edges, l.counts[:len(l.edges)-1]
	half, low, scale := l.half, l.low, l.scale
	for _, x := range v {
		i := int((x*half - low) * scale)
		if uint(i) < uint(len(counts)) && x >= edges[i] && x < edges[i+1] {
			counts[i]++
			continue
		}
		l.count(x, 1) // at an edge, or not finite
	}
}

// countTable counts counts[i] elements with the value values[i], for all i.
func (l *linear) countTable(values []float64, counts []int64) {
	for i, n := range counts {
		l.count(values[i], n)
	}
}

func (l *linear) histogram() *Histogram {
	h := &Histogram{Scale: ScaleLinear, Counts: l.counts}
	for _, e := range l.edges {
		h.Edges = append(h.Edges, Number(e))
	}
	return h
}

const (
	// lowestPower is the power of the smallest float64.
	lowestPower = -1074
	powers      = 1024 - lowestPower
)

// octaves counts elements by the power of two of their magnitude.
type octaves [powers]int64

// count counts n elements x, if x is finite and not zero.
func (o *octaves) count(x float64, n int64) {
	switch power := math.Float64bits(x) >> 52 & 0x7ff; power {
	case 0x7ff: // not finite
	case 0:
		if x != 0 {
			o[math.Ilogb(x)-lowestPower] += n
		}
	default:
		o[int(power)-1023-lowestPower] += n
	}
}

// countAll counts the finite elements of v that are not zero.
func (o *octaves) countAll(v []float64) {
	for _, x := range v {
		o.count(x, 1)
	}
}

func (o *octaves) add(p *octaves) {
	for i, n := range p {
		o[i] += n
	}
}

// span returns the range [lo, hi) of the powers that were counted. It is empty if there
// are none.
func (o *octaves) span() (lo, hi int) {
	lo, hi = 0, powers
	for lo < hi && o[lo] == 0 {
		lo++
	}
	for hi > lo && o[hi-1] == 0 {
		hi--
	}
	return lo, hi
}

// histogram returns at most n buckets of the powers [lo, hi), or nil if there are none.
func (o *octaves) histogram(lo, hi, n int) *Histogram {
	if lo == hi {
		return nil
	}
	width := (hi - lo + n - 1) / n
	h := &Histogram{Scale: ScaleLog2, Edges: []Number{power(lo)}}
	for at := lo; at < hi; at += width {
		var sum int64
		for _, c := range o[at:min(at+width, hi)] {
			sum += c
		}
		h.Counts = append(h.Counts, sum)
		h.Edges = append(h.Edges, power(at+width))
	}
	return h
}

func power(at int) Number { return Number(math.Ldexp(1, at+lowestPower)) }
