package inspect

import "math"

// History are statistics of a tensor at the checkpoints of a run, in the order of the run.
// Numbers are undefined if a checkpoint does not have the tensor.
type History struct {
	L2       []Number `json:"l2"`
	Mean     []Number `json:"mean"`
	Std      []Number `json:"std"`
	AbsMax   []Number `json:"abs_max"`
	NaNShare []Number `json:"nan_share"`
	// Histogram is nil if there are no elements to count.
	Histogram *HistogramOverTime `json:"histogram"`
}

// HistogramOverTime has a histogram for each checkpoint. All of them have the same edges.
type HistogramOverTime struct {
	Scale string   `json:"scale"`
	Edges []Number `json:"edges"`
	// Shares are by checkpoint the shares of all elements in each bucket. They are nil if the
	// checkpoint does not have the tensor.
	Shares [][]float32 `json:"shares"`
}

// NewHistory joins the statistics of a tensor at the checkpoints of a run. A checkpoint that
// does not have the tensor is nil. Histograms, which have edges of their own, get common ones:
// the elements of a bucket count for the new buckets that it overlaps, as if its elements had
// equal distances. There are at most buckets of them.
func NewHistory(all []*TensorStats, buckets int) *History {
	h := &History{}
	none := Number(math.NaN())
	for _, t := range all {
		l2, mean, std, absMax, nanShare := none, none, none, none, none
		if t != nil {
			l2, mean, std, absMax = t.L2, t.Mean, t.Std, t.absMax()
			if t.Elements > 0 {
				nanShare = Number(float64(t.NaN) / float64(t.Elements))
			}
		}
		h.L2, h.Mean, h.Std = append(h.L2, l2), append(h.Mean, mean), append(h.Std, std)
		h.AbsMax, h.NaNShare = append(h.AbsMax, absMax), append(h.NaNShare, nanShare)
	}

	h.Histogram = newHistogramOverTime(all, buckets)
	return h
}

func newHistogramOverTime(all []*TensorStats, buckets int) *HistogramOverTime {
	scale, lo, hi := "", math.Inf(1), math.Inf(-1)
	for _, t := range all {
		if t != nil && t.Histogram != nil && len(t.Histogram.Counts) > 0 {
			h := t.Histogram
			scale = h.Scale
			lo, hi = min(lo, h.place(0)), max(hi, h.place(len(h.Counts)))
		}
	}

	if lo > hi {
		return nil
	}

	width := 0.0 // of a bucket of whole powers
	if scale == ScaleLog2 {
		width = math.Ceil((hi - lo) / float64(buckets))
		buckets = int(math.Ceil((hi - lo) / width))
		hi = lo + float64(float64(buckets)*width)
	} else if hi/2-lo/2 <= 0 { // all elements are equal at all times
		pad := math.Abs(lo)/10 + math.SmallestNonzeroFloat64*float64(buckets)
		lo, hi = max(lo-pad, -math.MaxFloat64), min(hi+pad, math.MaxFloat64)
	}

	out := &HistogramOverTime{Scale: scale, Shares: make([][]float32, len(all))}
	for i := range buckets + 1 {
		t := float64(i) / float64(buckets)
		edge := float64(lo*(1-t)) + float64(hi*t) // the difference of two large numbers may be infinite
		if scale == ScaleLog2 {
			edge = math.Exp2(lo + float64(float64(i)*width))
		}
		out.Edges = append(out.Edges, Number(edge))
	}

	for i, t := range all {
		if t != nil {
			out.Shares[i] = shares(t, lo, hi, buckets)
		}
	}

	return out
}

// place returns the edge i on an axis: its exponent for the log2 scale.
func (h *Histogram) place(i int) float64 {
	e := float64(h.Edges[i])
	if h.Scale == ScaleLog2 {
		return min(math.Log2(e), 1024) // the upper edge of the largest numbers is infinite
	}
	return e
}

// shares returns the shares of the elements of a tensor in buckets of equal width between two
// places.
func shares(t *TensorStats, lo, hi float64, buckets int) []float32 {
	sums := make([]float64, buckets)
	at := func(x float64) float64 {
		return min(max((x/2-lo/2)/(hi/2-lo/2), 0), 1) * float64(buckets)
	}
	for i := 0; t.Histogram != nil && i < len(t.Histogram.Counts); i++ {
		n := float64(t.Histogram.Counts[i])
		from, to := at(t.Histogram.place(i)), at(t.Histogram.place(i+1))
		first := min(int(from), buckets-1)
		if n == 0 || to-from <= 0 {
			sums[first] += n
			continue
		}

		for k := first; k < buckets && float64(k) < to; k++ {
			part := min(to, float64(k+1)) - max(from, float64(k))
			sums[k] += float64(n * part / (to - from))
		}
	}

	out := make([]float32, buckets)
	for k := range out {
		out[k] = float32(sums[k] / float64(max(1, t.Elements)))
	}

	return out
}
