package plot

import (
	"math"

	"github.com/cairn-ckpt/cairn/inspect"
)

// mostColumns is the most checkpoints of a picture of histograms. Beyond it, some of them are
// left out at even distances.
const mostColumns = 600

// HistogramOverTime draws the histograms of a tensor at the checkpoints of a run: a column for
// each, with its label. h is nil if there are no elements to count.
func HistogramOverTime(title string, labels []string, h *inspect.HistogramOverTime, opts ...Option) *Picture {
	o := collect(opts)
	d, y := newDrawing(title, listed(o.about, plural(len(labels), "checkpoint")))
	if h == nil || len(h.Edges) < 2 || len(labels) == 0 || len(h.Shares) != len(labels) {
		return d.finish(d.empty(y, "there is nothing to count"))
	}
	m := newTimeMap(d, y+8, h, labels, o.logCounts)
	d.image(m.f.x0, m.f.y0, m.f.x1-m.f.x0, m.f.y1-m.f.y0, dataURI(m.pixels()), "")
	d.rect(m.f.x0, m.f.y0, m.f.x1-m.f.x0, m.f.y1-m.f.y0, `fill="none" stroke="`+axis+`"`, "")
	m.colorBar()
	notes := []string{"Grey: no elements."}
	if m.Width < len(labels) {
		notes = append(notes, plural(m.Width, "checkpoint")+" of "+count(len(labels))+" are drawn, at even distances.")
	}
	return d.finish(d.notes(m.f.y1+below+14, notes...))
}

// newTimeMap returns the histograms as a heat map, and draws its axes.
func newTimeMap(d *drawing, y float64, h *inspect.HistogramOverTime, labels []string, logCounts bool) *heatMap {
	buckets, width := len(h.Edges)-1, min(len(labels), mostColumns)
	column := func(k int) int { return k * (len(labels) - 1) / max(1, width-1) }
	m := &heatMap{
		Heat: &inspect.Heat{Height: buckets, Width: width}, d: d, colors: viridis, what: "share of the elements in each bucket",
		f: frame{d: d, x0: 96, x1: pictureWidth - 120, y0: y, y1: y + 400},
	}
	m.values = make([]inspect.Number, buckets*width)
	m.lo, m.hi = math.Inf(1), math.Inf(-1)
	if logCounts {
		m.what = "power of ten of the " + m.what
	}
	for k := range width {
		for b := range buckets {
			v := math.NaN()
			if shares := h.Shares[column(k)]; b < len(shares) && shares[b] > 0 {
				v = float64(shares[b])
				if logCounts {
					v = math.Log10(v)
				}
				m.lo, m.hi = min(m.lo, v), max(m.hi, v)
			}
			m.values[(buckets-1-b)*width+k] = inspect.Number(v)
		}
	}
	m.none = m.lo > m.hi
	if !logCounts {
		m.lo = min(m.lo, 0)
	}

	lo, hi := float64(h.Edges[0]), float64(h.Edges[buckets])
	if h.Scale == inspect.ScaleLog2 {
		lo, hi = math.Log2(lo), min(math.Log2(hi), 1024)
		m.f.y = newScale(lo, hi, m.f.y1, m.f.y0)
		m.f.yAxis(powerTicks(lo, hi), "magnitude of an element (powers of two)")
	} else {
		m.f.y = newScale(lo, hi, m.f.y1, m.f.y0)
		m.f.yAxis(linearTicks(lo, hi, 10), "value of an element")
	}
	m.f.x = newScale(-0.5, float64(width)-0.5, m.f.x0, m.f.x1)
	var ticks []tick
	for k := range width {
		ticks = append(ticks, tick{float64(k), fit(labels[column(k)], smallSize, max(84, (m.f.x1-m.f.x0)/float64(width)-6))})
	}
	m.f.xAxis(spaced(ticks, 12), "step")
	return m
}

// spaced returns at most about most ticks, at even distances.
func spaced(ticks []tick, most int) []tick {
	by := (len(ticks) + most - 1) / most
	var out []tick
	for i := 0; i < len(ticks); i += max(1, by) {
		out = append(out, ticks[i])
	}
	return out
}
