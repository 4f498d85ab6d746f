package inspect

import (
	"math"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Elements of one or two bytes have so few values that it is quickest to count
// how often each occurs: everything else follows from those counts, without a
// second pass.

// tableWorth is how many elements a tensor must have for that.
const tableWorth = 1 << 16

// tally counts the values of elements of one or two bytes in p.
func tally(d tensor.DType, p []byte, counts []uint32) error {
	if d.Size() == 1 {
		tallyBytes(p, (*[1 << 8]uint32)(counts))
		return nil
	}
	v, err := valuesOf[uint16](tensor.Uint16, p)
	if err != nil {
		return err
	}
	table := (*[1 << 16]uint32)(counts)
	for _, x := range v {
		table[x]++
	}
	return nil
}

// tallyBytes counts bytes in two tables: where one value follows itself, the
// second count would wait for the first.
func tallyBytes(p []byte, table *[1 << 8]uint32) {
	var other [1 << 8]uint32
	for ; len(p) >= 2; p = p[2:] {
		table[p[0]]++
		other[p[1]]++
	}
	for _, b := range p {
		table[b]++
	}
	for i, n := range other {
		table[i] += n
	}
}

// tableValues returns every value of a dtype of one or two bytes, by its bits.
func tableValues(d tensor.DType) ([]float32, error) {
	n := 1 << (8 * d.Size())
	bits := make([]byte, n*d.Size())
	for i := range n {
		if d.Size() == 1 {
			bits[i] = byte(i)
		} else {
			bits[2*i], bits[2*i+1] = byte(i), byte(i>>8)
		}
	}
	return converted(d, bits, make([]float32, n))
}

// tableMoments returns the moments of elements of which there are counts[i] with
// the value values[i].
func tableMoments(values []float32, counts []int64) moments {
	var m moments
	m.min, m.max = math.Inf(1), math.Inf(-1)
	sum := 0.0
	for i, n := range counts {
		if n == 0 {
			continue
		}
		switch x := float64(values[i]); {
		case x != x:
			m.nan += n
		case math.IsInf(x, 1):
			m.posInf += n
		case math.IsInf(x, -1):
			m.negInf += n
		default:
			m.n += n
			m.zeros += n * int64(count(x == 0))
			m.min, m.max = min(m.min, x), max(m.max, x)
			sum += float64(x * float64(n))
		}
	}
	if m.n == 0 {
		return m
	}
	m.mean = sum / float64(m.n)
	for i, n := range counts {
		if x := float64(values[i]); n > 0 && x-x == 0 { // finite
			m.m2 += float64((x - m.mean) * (x - m.mean) * float64(n))
		}
	}
	return m
}

// finish draws everything from the counts of all slabs. The caller holds mu.
func (it *statsItem) finish(o *StatsOptions) error {
	values, err := tableValues(it.entry.Tensor.DType)
	if err != nil {
		return err
	}
	it.total = tableMoments(values, it.values)
	switch {
	case o.Buckets == 0 || it.total.n == 0:
	case o.Log2:
		it.octaves = new(octaves)
		for i, n := range it.values {
			it.octaves.count(float64(values[i]), n)
		}
	default:
		it.linear = newLinear(it.total.min, it.total.max, o.Buckets)
		for i, n := range it.values {
			it.linear.count(float64(values[i]), n)
		}
	}
	it.values = nil
	return nil
}
