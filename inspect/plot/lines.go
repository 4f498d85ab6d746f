package plot

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

const (
	// directLines is the most lines with a colour and a label of their own. More lines have
	// the colours of a sequence.
	directLines = 24
	// mostLines is the most lines that are drawn, mostPoints the most points of a line.
	mostLines, mostPoints = 300, 400
)

// Lines draws one value of several things, such as the layers of a model, over the steps of
// a training. values[i][j] is the value of names[i] at steps[j]; NaN: there is no value.
// Lines have gaps where values are missing or infinite. The axis is logarithmic if the
// values are positive and far apart.
func Lines(title, yLabel string, steps []float64, names []string, values [][]float64, opts ...Option) *Picture {
	d, y := newDrawing(title, listed(collect(opts).about, plural(len(names), "line"), plural(len(steps), "step")))
	c := &lineChart{d: d, height: 380, names: names[:min(len(names), len(values))], steps: steps, values: values}
	if !c.measure() {
		why := "no finite values"
		if len(names) == 0 || len(steps) == 0 {
			why = "there are no values"
		}
		return d.finish(d.notes(d.empty(y, why), c.notes()...))
	}
	y = c.draw(y+8, yLabel)
	return d.finish(d.notes(y+14, c.notes()...))
}

// draw draws the lines with their axes, and returns the y coordinate below them.
func (c *lineChart) draw(y float64, yLabel string) float64 {
	c.axes(y, yLabel)
	shown := c.shown()
	for _, i := range shown {
		c.line(i)
	}
	if len(c.names) > directLines {
		c.colorBar()
		c.largest(shown)
	} else {
		c.labels(shown)
	}
	return c.f.y1 + below
}

// Metrics draws metrics of a training over its steps. values[i][j] is the value of names[i] at
// steps[j]; NaN: there is no value, and the line goes on. An infinite value is any number that
// is not finite. Metrics of about the same size share an axis, others have one of their own.
func Metrics(steps []float64, names []string, values [][]float64, opts ...Option) *Picture {
	d, y := newDrawing("Metrics", listed(collect(opts).about, plural(len(names), "metric"), plural(len(steps), "step")))
	charts, odd := alike(d, steps, names, values)
	if len(charts) == 0 {
		return d.finish(d.notes(d.empty(y, "there are no values"), odd...))
	}
	for _, c := range charts {
		c.height = max(380/float64(len(charts)), 160)
		label := ""
		if len(c.names) == 1 {
			label = name(c.names[0])
		}
		y = c.draw(y+8, label) + 8
	}
	return d.finish(d.notes(y+6, odd...))
}

// alike returns a chart for each group of metrics with largest magnitudes that differ by a
// factor of ten at most, and a note on each metric that is not always finite.
func alike(d *drawing, steps []float64, names []string, values [][]float64) (charts []*lineChart, odd []string) {
	var sizes []float64
	for i := range names[:min(len(names), len(values))] {
		one := &lineChart{d: d, names: names[i : i+1], steps: steps, values: values[i : i+1], spans: true}
		some := one.measure()
		if one.infinite > 0 {
			odd = append(odd, name(names[i])+" is not finite in "+plural(one.infinite, "checkpoint")+".")
		}
		if !some {
			continue
		}
		size := max(math.Abs(one.lo), math.Abs(one.hi))
		k := slices.IndexFunc(sizes, func(s float64) bool { return size/10 <= s && s/10 <= size })
		if k < 0 {
			k = len(charts)
			charts, sizes = append(charts, &lineChart{d: d, steps: steps, spans: true}), append(sizes, size)
		}
		c := charts[k]
		c.names, c.values = append(c.names, names[i]), append(c.values, values[i])
		c.measure()
	}
	return charts, odd
}

// lineChart draws lines.
type lineChart struct {
	d        *drawing
	f        frame
	names    []string
	steps    []float64
	values   [][]float64
	lo, hi   float64
	log      bool
	infinite int
	height   float64
	spans    bool // a line goes on where a value is missing
}

// value returns a finite value.
func (c *lineChart) value(i, j int) (float64, bool) {
	if j >= len(c.values[i]) {
		return 0, false
	}
	v := c.values[i][j]
	return v, v-v == 0 && c.steps[j]-c.steps[j] == 0
}

// measure sets the extent of the values and returns false if there are none.
func (c *lineChart) measure() bool {
	c.lo, c.hi, c.infinite = math.Inf(1), math.Inf(-1), 0
	for i := range c.names {
		for j := range c.steps {
			if v, ok := c.value(i, j); ok {
				c.lo, c.hi = min(c.lo, v), max(c.hi, v)
			} else if j < len(c.values[i]) && math.IsInf(c.values[i][j], 0) {
				c.infinite++
			}
		}
	}
	c.log = c.lo > 0 && c.hi/100 > c.lo
	return c.lo <= c.hi
}

// shown returns the lines that are drawn.
func (c *lineChart) shown() []int {
	n := min(len(c.names), mostLines)
	out := make([]int, n)
	for k := range out {
		out[k] = k
		if n < len(c.names) {
			out[k] = k * (len(c.names) - 1) / (n - 1)
		}
	}
	return out
}

func (c *lineChart) axes(y float64, yLabel string) {
	right := 200.0
	c.f = frame{d: c.d, x0: 90, x1: pictureWidth - right, y0: y, y1: y + c.height}
	f := &c.f
	if c.log {
		lo, hi := max(c.lo/1.2, math.SmallestNonzeroFloat64), min(c.hi*1.2, math.MaxFloat64)
		f.y = newLogScale(lo, hi, f.y1, f.y0)
		f.yAxis(logTicks(lo, hi, c.ticks()), yLabel+" (logarithmic)")
	} else {
		pad := (c.hi/2 - c.lo/2) * 0.1
		lo, hi := max(c.lo-pad, -math.MaxFloat64), min(c.hi+pad, math.MaxFloat64)
		switch {
		case c.lo == 0 && c.hi == 0:
			hi = 1
		case c.lo >= 0 && c.lo < c.hi/2:
			lo = 0
		}
		f.y = newScale(lo, hi, f.y1, f.y0)
		f.yAxis(linearTicks(f.y.lo, f.y.hi, c.ticks()), yLabel)
	}
	first, last := math.Inf(1), math.Inf(-1)
	for _, s := range c.steps {
		if s-s == 0 {
			first, last = min(first, s), max(last, s)
		}
	}
	if first == last {
		f.x = newScale(first-1, last+1, f.x0, f.x1)
		f.xAxis([]tick{{first, number(first)}}, "step")
		return
	}
	f.x = newScale(first, last, f.x0, f.x1)
	step := niceStep(first, last, 9)
	if whole := !slices.ContainsFunc(c.steps, func(s float64) bool { return s != math.Trunc(s) }); whole {
		step = max(1, step)
	}
	var ticks []tick
	for _, v := range multiples(first, last, step) {
		ticks = append(ticks, tick{v, stepLabel(v, step)})
	}
	f.xAxis(ticks, "step")
}

// ticks returns about how many values an axis of the height has.
func (c *lineChart) ticks() int { return min(8, int(c.height/30)) }

// stepLabel prints a step in full if it is a whole number.
func stepLabel(v, step float64) string {
	if math.Abs(v) < 1e15 && v == math.Trunc(v) {
		return count(int64(v))
	}
	return tickLabel(v, step, math.Abs(v))
}

// dashes tell lines of the same colour apart.
var dashes = [...]string{"", "6 3", "2 2", "9 3 2 3"}

// color returns the colour of a line and how it is dashed.
func (c *lineChart) color(i int) (color, dash string) {
	if len(c.names) > directLines {
		return viridis.at(0.95 * float64(i) / float64(len(c.names)-1)).hex(), ""
	}
	const usable = 6 // without yellow, which is too light for lines, and black
	if i >= usable {
		dash = ` stroke-dasharray="` + dashes[i/usable] + `"`
	}
	return category(i % usable), dash
}

// line draws the line i.
func (c *lineChart) line(i int) {
	color, dash := c.color(i)
	var p path
	run, drawn := 0, 0
	var lastX, lastY float64
	dots := len(c.names) <= directLines && len(c.steps) <= 50
	single := func() { // a value without neighbours would be invisible
		if run == 1 && !dots {
			c.d.circle(lastX, lastY, 2.5, `fill="`+color+`"`, c.names[i])
		}
		run = 0
	}
	for _, j := range c.thinned(i) {
		v, ok := c.value(i, j)
		if !ok && c.spans && j < len(c.values[i]) && math.IsNaN(c.values[i][j]) {
			continue
		}
		if !ok {
			single()
			continue
		}
		lastX, lastY = c.f.x.at(c.steps[j]), c.f.y.at(v)
		if run == 0 {
			p.move(lastX, lastY)
		} else {
			p.to(lastX, lastY)
			drawn++
		}
		run++
		if dots {
			c.d.circle(lastX, lastY, 2.5, `fill="`+color+`"`, fmt.Sprintf("%s, step %s: %s", fit(c.names[i], 1, 200), number(c.steps[j]), number(v)))
		}
	}
	single()
	if drawn > 0 {
		width := 1.75
		if len(c.names) > directLines {
			width = 1.1
		}
		c.d.path(&p, fmt.Sprintf(`fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round"%s`, color, num(width), dash), fit(c.names[i], 1, 200))
	}
}

// thinned returns the steps of a line that are drawn: all, or the least and the largest value
// of neighbours.
func (c *lineChart) thinned(i int) []int {
	n := len(c.steps)
	var out []int
	if n <= mostPoints {
		for j := range n {
			out = append(out, j)
		}
		return out
	}
	by := (2*n + mostPoints - 1) / mostPoints
	for from := 0; from < n; from += by {
		lo, hi := -1, -1
		for j := from; j < min(from+by, n); j++ {
			v, ok := c.value(i, j)
			if !ok {
				continue
			}
			if lo < 0 || v < c.values[i][lo] {
				lo = j
			}
			if hi < 0 || v > c.values[i][hi] {
				hi = j
			}
		}
		if lo < 0 {
			out = append(out, from) // a gap, unless the line spans it
			continue
		}
		out = append(out, min(lo, hi))
		if lo != hi {
			out = append(out, max(lo, hi))
		}
	}
	return out
}

// labels writes the names at the ends of the lines, without covering each other.
func (c *lineChart) labels(shown []int) {
	type label struct {
		i    int
		x, y float64 // end of the line
		at   float64 // of the text
	}
	var all []label
	for _, i := range shown {
		for j := len(c.steps) - 1; j >= 0; j-- {
			if v, ok := c.value(i, j); ok {
				all = append(all, label{i: i, x: c.f.x.at(c.steps[j]), y: c.f.y.at(v)})
				break
			}
		}
	}
	slices.SortStableFunc(all, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	const step = 15.0
	at := c.f.y0 - step
	for i := range all {
		at = max(at+step, all[i].y)
		all[i].at = at
	}
	at = c.f.y1 + step
	for i := len(all) - 1; i >= 0; i-- {
		at = min(at-step, all[i].at)
		all[i].at = at
	}
	for _, l := range all {
		color, dash := c.color(l.i)
		c.d.line(l.x, l.y, c.f.x1+16, l.at, `stroke="`+color+`" stroke-width="0.75" stroke-opacity="0.6"`)
		c.d.line(c.f.x1+16, l.at, c.f.x1+30, l.at, `stroke="`+color+`" stroke-width="1.75"`+dash)
		c.d.write(c.f.x1+34, l.at+4, fit(c.names[l.i], smallSize, pictureWidth-c.f.x1-42), look{size: smallSize})
	}
}

// largest writes the names of the lines with the largest magnitudes at their ends, on the side
// away from zero: the colours of many lines do not tell which one it is.
func (c *lineChart) largest(shown []int) {
	type end struct{ x, y, size, last float64 }
	ends := make(map[int]end)
	for _, i := range shown {
		var e end
		for j := range c.steps {
			if v, ok := c.value(i, j); ok {
				e = end{c.f.x.at(c.steps[j]), c.f.y.at(v), max(e.size, math.Abs(v)), v}
			}
		}
		if e.size > 0 {
			ends[i] = e
		}
	}
	order := slices.SortedStableFunc(maps.Keys(ends), func(a, b int) int {
		return cmp.Or(cmp.Compare(ends[b].size, ends[a].size), cmp.Compare(a, b))
	})
	var done []end
	for _, i := range order {
		e := ends[i]
		if len(done) == 3 || slices.ContainsFunc(done, func(o end) bool { return math.Abs(o.y-e.y) < 14 }) {
			continue
		}
		done = append(done, e)
		look := look{size: smallSize, halo: true, anchor: "end"}
		x := e.x
		if e.x < c.f.x0+220 { // such as the only step
			x, look.anchor = e.x+6, ""
		}
		y := max(e.y-5, c.f.y0+10)
		if e.last < 0 {
			y = min(e.y+14, c.f.y1-4)
		}
		c.d.write(x, y, fit(c.names[i], smallSize, 300), look)
	}
}

// colorBar shows which names the colours stand for.
func (c *lineChart) colorBar() {
	x, h := c.f.x1+24, 260.0
	n := len(c.names)
	c.d.write(x, c.f.y0+4, "in order of names", look{size: smallSize, color: soft})
	y0 := c.f.y0 + 16
	const slices = 64
	for k := range slices {
		color, _ := c.color((slices - 1 - k) * (n - 1) / (slices - 1))
		c.d.rect(x, y0+float64(k)*h/slices, 14, h/slices+0.5, `fill="`+color+`"`, "")
	}
	for k := range 6 {
		i := k * (n - 1) / 5
		y := y0 + h*(1-float64(i)/float64(n-1))
		c.d.line(x+14, y, x+18, y, `stroke="`+axis+`"`)
		c.d.write(x+22, y+4, fit(c.names[i], smallSize, pictureWidth-x-28), look{size: smallSize, color: soft})
	}
}

func (c *lineChart) notes() []string {
	var out, without []string
	for j, s := range c.steps {
		has := func(v []float64) bool { return j < len(v) && !math.IsNaN(v[j]) }
		if !slices.ContainsFunc(c.values, has) {
			without = append(without, stepLabel(s, 1))
		}
	}
	if n := len(without); n > 0 && n < len(c.steps) {
		text := "Without values: step "
		if n > 1 {
			text = "Without values: steps "
		}
		if n > 8 {
			without = append(without[:8], fmt.Sprintf("and %s more", count(n-8)))
		}
		out = append(out, text+strings.Join(without, ", ")+".")
	}
	if c.infinite > 0 {
		out = append(out, "Not in the chart: "+plural(c.infinite, "infinite value")+".")
	}
	if len(c.names) > mostLines {
		out = append(out, fmt.Sprintf("%d of %s lines are drawn, at even distances in their order.", mostLines, count(len(c.names))))
	}
	return out
}
