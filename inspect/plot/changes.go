package plot

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
)

// Changes draws the relative change of each tensor that two checkpoints have in common, in
// the order of the layers. Tensors that are equal are counted in a note.
func Changes(items []inspect.Compared, opts ...Option) *Picture {
	c := newChangeChart(items)
	d, y := newDrawing("Relative change of each tensor", listed(collect(opts).about, plural(len(c.dots), "changed tensor")))
	c.d = d
	if len(c.dots) == 0 {
		why := "no tensor changed"
		if len(items) == 0 {
			why = "nothing was compared"
		} else if c.equal == 0 {
			why = "no tensor has a relative change"
		}
		return d.finish(d.notes(d.empty(y, why), c.notes()...))
	}
	y = d.legend(margin, y+12, c.legend())
	c.axes(y)
	if len(c.dots) > mostDots {
		c.columns()
	} else {
		for i := range c.dots {
			p := &c.dots[i]
			c.d.circle(c.f.x.at(float64(i)), c.height(p), 3, `fill="`+category(c.group(p))+`" fill-opacity="0.8"`, p.tip())
		}
	}
	c.labels()
	return d.finish(d.notes(c.f.y1+below+30, c.notes()...))
}

// mostDots is the most tensors with a dot of their own. Of more tensors, columns of pixels
// show the least and the largest change.
const mostDots = 4000

// changeDot is a tensor that changed.
type changeDot struct {
	fqn, layer, kind string
	change           float64 // +Inf: the tensor was zero
	values           *inspect.ValueDifference
}

func (p *changeDot) tip() string {
	text := fmt.Sprintf("%s\nrelative change %s", fit(p.fqn, 1, 200), number(p.change))
	if !p.values.Cosine.None() {
		text += ", cosine " + number(float64(p.values.Cosine))
	}
	return text + fmt.Sprintf("\nlargest difference %s, %s of %s differ", number(float64(p.values.MaxAbs)), count(p.values.Differing), plural(p.values.Elements, "element"))
}

// changeChart draws changes.
type changeChart struct {
	d      *drawing
	f      frame
	dots   []changeDot // in natural order of names
	kinds  []string    // the kinds that have a colour
	others bool        // there are further kinds

	equal, fromZero, undefined, incomparable, oneSided int
}

func newChangeChart(items []inspect.Compared) *changeChart {
	c := &changeChart{}
	for i := range items {
		c.add(&items[i])
	}
	slices.SortStableFunc(c.dots, func(a, b changeDot) int { return inspect.Natural(a.fqn, b.fqn) })
	counts := map[string]int{}
	for _, p := range c.dots {
		counts[p.kind]++
	}
	c.kinds = slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	if most := len(categories) - 1; len(c.kinds) > most {
		c.kinds, c.others = c.kinds[:most], true
	}
	return c
}

func (c *changeChart) add(it *inspect.Compared) {
	v := it.Values
	tensor := it.A != nil && it.A.Kind == inspect.KindTensor || it.B != nil && it.B.Kind == inspect.KindTensor
	switch {
	case it.Status == inspect.StatusMissing || it.Status == inspect.StatusExtra:
		if tensor {
			c.oneSided++
		}
	case v == nil && it.Status == inspect.StatusIdentical && tensor:
		c.equal++
	case v == nil:
		if tensor {
			c.incomparable++
		}
	case v.Change == nil || v.RelL2.None():
		switch {
		case v.Differing == 0:
			c.equal++
		case v.Change == nil:
			c.incomparable++
		default:
			c.undefined++
		}
	case v.RelL2 <= 0:
		c.equal++
	default:
		if math.IsInf(float64(v.RelL2), 0) {
			c.fromZero++
		}
		layer, kind := layerAndKind(it.FQN)
		c.dots = append(c.dots, changeDot{it.FQN, layer, kind, float64(v.RelL2), v})
	}
}

// layerAndKind returns the layer of a tensor and its kind of component: the next component
// of its name after the layer, or the last component of the layer if the name ends there.
func layerAndKind(fqn string) (layer, kind string) {
	layer = inspect.Layer(fqn)
	rest := strings.TrimPrefix(strings.TrimPrefix(fqn, layer), ".")
	if first, _, more := strings.Cut(rest, "."); more {
		return layer, first
	}
	last := layer[strings.LastIndexByte(layer, '.')+1:]
	if rest != "" && strings.Trim(last, "0123456789") == "" {
		return layer, rest
	}
	return layer, last
}

// group returns the number of the colour of a dot.
func (c *changeChart) group(p *changeDot) int { return slices.Index(c.kinds, p.kind) }

func (c *changeChart) legend() []swatch {
	var out []swatch
	for i, k := range c.kinds {
		out = append(out, swatch{color: category(i), text: fit(k, textSize, 200)})
	}
	if c.others {
		out = append(out, swatch{color: other, text: "other"})
	}
	return out
}

func (c *changeChart) axes(y float64) {
	c.f = frame{d: c.d, x0: 84, x1: pictureWidth - 24, y0: y + 4, y1: y + 4 + 380}
	f := &c.f
	lo, hi := math.Inf(1), math.Inf(-1)
	for i := range c.dots {
		if v := c.dots[i].change; !math.IsInf(v, 0) {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	if lo > hi {
		lo, hi = 0.1, 1
	}
	lo, hi = max(lo/1.6, math.SmallestNonzeroFloat64), min(hi*1.6, math.MaxFloat64)
	f.y = newLogScale(lo, hi, f.y1, f.y0+16)
	f.x = newScale(-0.5, float64(len(c.dots))-0.5, f.x0, f.x1)
	f.yAxis(logTicks(lo, hi, 8), "relative change ‖b − a‖ / ‖a‖ (logarithmic)")
	f.xAxis(nil, "")
	c.layers()
}

// layers draws the beginnings of layers and their names.
func (c *changeChart) layers() {
	f := &c.f
	end, drawn := math.Inf(-1), math.Inf(-1)
	for i := 0; i < len(c.dots); {
		n := i + 1
		for n < len(c.dots) && c.dots[n].layer == c.dots[i].layer {
			n++
		}
		x := f.x.at(float64(i) - 0.5)
		if x-drawn >= 4 {
			f.d.line(x, f.y1, x, f.y1+4, `stroke="`+axis+`"`)
			drawn = x
		}
		label := fit(c.dots[i].layer, smallSize, 150)
		left := min(x, f.x1-textWidth(label, smallSize))
		if left >= end {
			f.d.write(left, f.y1+17, label, look{size: smallSize, color: soft})
			f.d.line(x, f.y0, x, f.y1, `stroke="`+rule+`"`)
			end = left + textWidth(label, smallSize) + 10
		}
		i = n
	}
	f.d.write((f.x0+f.x1)/2, f.y1+38, "tensors in the order of their layers", look{color: soft, anchor: "middle"})
}

// height returns the y coordinate of a dot. A tensor that was zero is at the top.
func (c *changeChart) height(p *changeDot) float64 {
	if math.IsInf(p.change, 0) {
		return c.f.y0 + 6
	}
	return c.f.y.at(p.change)
}

// columns draws the least and the largest change of each group in columns of pixels.
func (c *changeChart) columns() {
	type key struct{ x, group int }
	type extent struct{ lo, hi float64 }
	spans := map[key]extent{}
	const width = 3
	for i := range c.dots {
		p := &c.dots[i]
		k, y := key{int(c.f.x.at(float64(i)) / width), c.group(p)}, c.height(p)
		if s, ok := spans[k]; ok {
			spans[k] = extent{min(s.lo, y), max(s.hi, y)}
		} else {
			spans[k] = extent{y, y}
		}
	}
	keys := slices.SortedFunc(maps.Keys(spans), func(a, b key) int { return cmp.Or(cmp.Compare(a.x, b.x), cmp.Compare(a.group, b.group)) })
	for _, k := range keys {
		s := spans[k]
		c.d.rect(float64(k.x*width), s.lo-1, width-0.5, s.hi-s.lo+2, `fill="`+category(k.group)+`" fill-opacity="0.6"`, "")
	}
}

// labels writes the names of the largest changes, as far as there is room.
func (c *changeChart) labels() {
	order := make([]int, len(c.dots))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.dots[b].change, c.dots[a].change) })
	var used []box
	for _, i := range order[:min(len(order), 8)] {
		text := fit(c.dots[i].fqn, smallSize, 300)
		if b, ok := c.room(i, textWidth(text, smallSize), used); ok {
			used = append(used, b)
			if x := c.f.x.at(float64(i)); b.x1-x < x-b.x0 { // the end is closer to the dot
				c.d.write(b.x1, b.y1-2, text, look{size: smallSize, halo: true, anchor: "end"})
			} else {
				c.d.write(b.x0, b.y1-2, text, look{size: smallSize, halo: true})
			}
		}
	}
}

// box is an area of a picture.
type box struct{ x0, y0, x1, y1 float64 }

func (b box) overlaps(o box) bool { return b.x0 < o.x1 && o.x0 < b.x1 && b.y0 < o.y1 && o.y0 < b.y1 }

// room finds a place for a label beside a dot, where it covers no label and no dot. It
// returns false if there is no such place.
func (c *changeChart) room(i int, w float64, used []box) (b box, ok bool) {
	const height, gap = 13.0, 6.0
	x, y := c.f.x.at(float64(i)), c.height(&c.dots[i])
	above, below := y-gap-height, y+gap
	for _, at := range [][2]float64{
		{x + gap, y - height/2}, {x - gap - w, y - height/2}, {x - w/2, above}, {x - 4, above}, {x + 4 - w, above}, {x - w/2, below}, {x - 4, below}, {x + 4 - w, below},
	} {
		b = box{at[0], at[1], at[0] + w, at[1] + height}
		inside := b.x0 >= c.f.x0 && b.x1 <= c.f.x1 && b.y0 >= c.f.y0-4 && b.y1 <= c.f.y1
		if inside && !slices.ContainsFunc(used, b.overlaps) && !c.covers(b) {
			return b, true
		}
	}
	return box{}, false
}

// covers reports whether a dot is in an area.
func (c *changeChart) covers(b box) bool {
	for i := range c.dots {
		x, y := c.f.x.at(float64(i)), c.height(&c.dots[i])
		if b.overlaps(box{x - 3, y - 3, x + 3, y + 3}) {
			return true
		}
	}
	return false
}

func (c *changeChart) notes() []string {
	var out []string
	add := func(n int, format string) {
		if n > 0 {
			out = append(out, fmt.Sprintf(format, plural(n, "tensor")))
		}
	}
	add(c.equal, "Not in the chart: %s with equal elements.")
	add(c.fromZero, "At the top edge: %s whose elements were all zero, so that the relative change is infinite.")
	add(c.undefined, "Not in the chart: %s with an undefined change, because all elements were zero or none is finite on both sides.")
	add(c.incomparable, "Not in the chart: %s whose shapes or kinds differ, or whose values were not compared.")
	add(c.oneSided, "Not in the chart: %s that only one of the checkpoints has.")
	if len(c.dots) > mostDots {
		out = append(out, "There are too many tensors for dots of their own: columns reach from the least to the largest change.")
	}
	return out
}
