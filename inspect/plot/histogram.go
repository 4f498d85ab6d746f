package plot

import (
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/inspect"
)

// Histogram draws the histogram of a tensor.
func Histogram(t *inspect.TensorStats, opts ...Option) *Picture {
	o := collect(opts)
	d, y := newDrawing(t.FQN, o.about, listed(t.DType+" "+shapeText(t.Shape), plural(t.Elements, "element"), numbersText(&t.Numbers)))
	h := t.Histogram
	switch {
	case t.Elements == 0:
		return d.finish(d.empty(y, "the tensor has no elements"))
	case t.Finite() == 0:
		return d.finish(d.notes(d.empty(y, "no finite elements"), oddNote(&t.Numbers, false)))
	case h == nil && t.Zeros == t.Finite():
		return d.finish(d.notes(d.empty(y, "all finite elements are zero"), oddNote(&t.Numbers, false)))
	case !drawable(h):
		return d.finish(d.notes(d.empty(y, "no histogram was made"), oddNote(&t.Numbers, false)))
	}
	c := newBarChart(d, y, h, o, highest(h), false)
	c.bars(h, category(0))
	return d.finish(d.notes(c.f.y1+below+14, c.mergedNote(), oddNote(&t.Numbers, h.Scale == inspect.ScaleLog2)))
}

// drawable reports whether a histogram has buckets and as many edges as it must have.
func drawable(h *inspect.Histogram) bool {
	return h != nil && len(h.Counts) > 0 && len(h.Edges) == len(h.Counts)+1
}

// numbersText prints the statistics of a tensor.
func numbersText(n *inspect.Numbers) string {
	if n.Finite() == 0 {
		return ""
	}
	return fmt.Sprintf("least %s · largest %s · mean %s · standard deviation %s",
		number(float64(n.Min)), number(float64(n.Max)), number(float64(n.Mean)), number(float64(n.Std)))
}

// oddNote counts the elements that a histogram does not show, and zeros.
func oddNote(n *inspect.Numbers, log2 bool) string {
	odd := listed(some(n.NaN, "NaN"), some(n.PosInf, "+inf"), some(n.NegInf, "−inf"))
	if odd != "" {
		odd = "Not in the chart: " + odd + " of " + plural(n.Elements, "element") + "."
	}
	zeros := ""
	if n.Zeros > 0 {
		are := "are"
		if n.Zeros == 1 {
			are = "is"
		}
		zeros = fmt.Sprintf("%s of %s %s zero (%s).", count(n.Zeros), plural(n.Elements, "element"), are, percent(float64(n.Zeros), float64(n.Elements)))
		if log2 {
			zeros = fmt.Sprintf("Not in the chart, which shows magnitudes: %s (%s).", plural(n.Zeros, "zero"), percent(float64(n.Zeros), float64(n.Elements)))
		}
	}
	return odd + " " + zeros
}

// mergedBy returns how many of n buckets a bar shows.
func mergedBy(n int) int { return (n + mostBars - 1) / mostBars }

// highest returns the largest count of a bar.
func highest(h *inspect.Histogram) float64 {
	most, by := int64(0), mergedBy(len(h.Counts))
	for i := 0; i < len(h.Counts); i += by {
		sum := int64(0)
		for _, n := range h.Counts[i:min(i+by, len(h.Counts))] {
			sum += n
		}
		most = max(most, sum)
	}
	return float64(most)
}

// mostBars is the most buckets that are drawn one by one. mostTips is the most of them that
// have a tip.
const (
	mostBars = 800
	mostTips = 256
)

// barChart draws histograms with the same edges.
type barChart struct {
	f      frame
	edges  []float64 // on the axis: powers for the log2 scale
	merged int       // buckets in each bar
	floor  float64   // count at the lower edge
}

// newBarChart draws the axes for histograms like h, up to the count most. If shares is set,
// counts are shares of all elements.
func newBarChart(d *drawing, y float64, h *inspect.Histogram, o options, most float64, shares bool) *barChart {
	c := &barChart{f: frame{d: d, x0: 84, x1: pictureWidth - 24, y0: y + 8, y1: y + 8 + 360}, merged: mergedBy(len(h.Counts))}
	c.setEdges(h)
	f := &c.f
	most = max(most, 1e-300)
	f.y = newScale(0, most*1.05, f.y1, f.y0)
	ticks, yLabel := countTicks(most*1.05, 6), "elements in each bucket"
	if shares {
		ticks, yLabel = linearTicks(0, most*1.05, 6), "share of the elements in each bucket"
	}
	if o.logCounts {
		c.floor = 0.5
		if shares {
			c.floor = min(1e-6, most/10)
		}
		f.y = newLogScale(c.floor, most*1.5, f.y1, f.y0)
		ticks, yLabel = logTicks(c.floor*1.5, most*1.5, 8), yLabel+" (logarithmic)"
	}
	f.yAxis(ticks, yLabel)
	last := c.edges[len(c.edges)-1]
	f.x = newScale(c.edges[0], last, f.x0, f.x1)
	if h.Scale == inspect.ScaleLog2 {
		f.xAxis(powerTicks(c.edges[0], last), "magnitude of an element (powers of two)")
		return c
	}
	f.xAxis(linearTicks(f.x.lo, f.x.hi, 10), "value of an element")
	return c
}

// setEdges sets the edges of the bars.
func (c *barChart) setEdges(h *inspect.Histogram) {
	for i := 0; i < len(h.Edges); i += c.merged {
		c.edges = append(c.edges, float64(h.Edges[i]))
	}
	if (len(h.Edges)-1)%c.merged != 0 {
		c.edges = append(c.edges, float64(h.Edges[len(h.Edges)-1]))
	}
	if h.Scale != inspect.ScaleLog2 {
		return
	}
	for i, e := range c.edges {
		switch {
		case !math.IsInf(e, 0):
			c.edges[i] = math.Log2(e)
		case i > 1: // the upper edge of the largest numbers is none
			c.edges[i] = 2*c.edges[i-1] - c.edges[i-2]
		default:
			c.edges[i] = 1024
		}
	}
}

// powerTicks returns ticks at powers of two between two exponents.
func powerTicks(lo, hi float64) []tick {
	step := max(1, niceStep(lo, hi, 16))
	var out []tick
	for _, v := range multiples(lo, hi, step) {
		out = append(out, tick{v, power(2, int(v))})
	}
	return out
}

func (c *barChart) mergedNote() string {
	if c.merged <= 1 {
		return ""
	}
	return fmt.Sprintf("Each bar shows %d buckets.", c.merged)
}

// counts returns the counts of the bars, divided by whole.
func (c *barChart) counts(h *inspect.Histogram, whole float64) []float64 {
	out := make([]float64, len(c.edges)-1)
	for i, n := range h.Counts {
		out[i/c.merged] += float64(n) / whole
	}
	return out
}

// span returns the left and the right edge of a bar.
func (c *barChart) span(i int) (x0, x1 float64) {
	if c.edges[i] == c.edges[i+1] { // all elements are equal
		at := c.f.x.at(c.edges[i])
		return at - 12, at + 12
	}
	return c.f.x.at(c.edges[i]), c.f.x.at(c.edges[i+1])
}

// top returns the y coordinate of a count. A count above zero is always visible.
func (c *barChart) top(n float64) float64 {
	if n <= c.floor {
		return c.f.y1
	}
	return min(c.f.y.at(n), c.f.y1-1)
}

// bars draws a histogram as bars.
func (c *barChart) bars(h *inspect.Histogram, color string) {
	counts := c.counts(h, 1)
	if x0, x1 := c.span(0); x1-x0 < 3 { // edges of such narrow bars would be a pattern
		c.outline(counts, color, 1)
		return
	}
	c.f.d.open(`fill="` + color + `"`)
	for i, n := range counts {
		if n == 0 {
			continue
		}
		x0, x1 := c.span(i)
		gap, tip := 0.0, ""
		if x1-x0 > 4 {
			gap = 0.5
		}
		if len(counts) <= mostTips {
			tip = fmt.Sprintf("%s to %s: %s", number(float64(h.Edges[i*c.merged])), number(float64(h.Edges[min((i+1)*c.merged, len(h.Edges)-1)])),
				plural(int64(n), "element"))
		}
		c.f.d.rect(x0+gap, c.top(n), x1-x0-2*gap, c.f.y1-c.top(n), "", tip)
	}
	c.f.d.closeGroup()
}

// outline draws a histogram as an outline with a translucent area below it.
func (c *barChart) outline(counts []float64, color string, opacity float64) {
	var area, edge path
	x0, _ := c.span(0)
	area.move(x0, c.f.y1)
	for i, n := range counts {
		x0, x1 := c.span(i)
		if i == 0 {
			edge.move(x0, c.top(n))
		} else {
			edge.to(x0, c.top(n))
		}
		edge.to(x1, c.top(n))
		area.to(x0, c.top(n))
		area.to(x1, c.top(n))
	}
	_, x1 := c.span(len(counts) - 1)
	area.to(x1, c.f.y1)
	area.close()
	c.f.d.path(&area, `fill="`+color+`" fill-opacity="`+num(opacity)+`"`, "")
	if opacity == 1 {
		return
	}
	c.f.d.path(&edge, `fill="none" stroke="`+color+`" stroke-width="1.5"`, "")
}

// Overlay draws the histograms of two tensors over each other. nameA and nameB are their
// names in the legend. If the tensors have different numbers of elements, the chart shows shares.
func Overlay(o *inspect.Overlaid, nameA, nameB string, opts ...Option) *Picture {
	title := o.B.FQN
	if o.A.FQN != o.B.FQN {
		title = name(o.A.FQN) + " and " + name(o.B.FQN)
	}
	set := collect(opts)
	d, y := newDrawing(title, set.about,
		listed(name(nameA)+": "+o.A.DType+" "+shapeText(o.A.Shape), plural(o.A.Elements, "element"), numbersText(&o.A.Numbers)),
		listed(name(nameB)+": "+o.B.DType+" "+shapeText(o.B.Shape), plural(o.B.Elements, "element"), numbersText(&o.B.Numbers)))
	ha, hb := o.A.Histogram, o.B.Histogram
	if !drawable(ha) && !drawable(hb) {
		return d.finish(d.notes(d.empty(y, "no finite elements"), oddSide(nameA, &o.A.Numbers, false), oddSide(nameB, &o.B.Numbers, false)))
	}
	h := ha
	if !drawable(ha) {
		h = hb
	}
	wholeA, wholeB := 1.0, 1.0
	shares := o.A.Elements != o.B.Elements
	if shares {
		wholeA, wholeB = float64(max(1, o.A.Elements)), float64(max(1, o.B.Elements))
	}
	y = d.legend(margin, y+12, []swatch{{color: category(0), text: nameA}, {color: category(1), text: nameB}})
	most := 0.0
	if drawable(ha) {
		most = highest(ha) / wholeA
	}
	if drawable(hb) {
		most = max(most, highest(hb)/wholeB)
	}
	c := newBarChart(d, y, h, set, most, shares)
	for i, side := range []*inspect.Histogram{ha, hb} {
		if drawable(side) && len(side.Counts) == len(h.Counts) {
			c.outline(c.counts(side, []float64{wholeA, wholeB}[i]), category(i), 0.25)
		}
	}
	log2 := h.Scale == inspect.ScaleLog2
	return d.finish(d.notes(c.f.y1+below+14, c.mergedNote(), oddSide(nameA, &o.A.Numbers, log2), oddSide(nameB, &o.B.Numbers, log2)))
}

// oddSide is oddNote for one of two tensors.
func oddSide(of string, n *inspect.Numbers, log2 bool) string {
	note := oddNote(n, log2)
	if note == " " {
		return ""
	}
	return name(of) + ": " + note
}
