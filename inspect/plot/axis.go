package plot

import (
	"math"
	"slices"
	"strconv"
)

// scale maps values from lo to hi to pixels.
type scale struct {
	lo, hi   float64 // lo < hi; for a logarithmic scale, both are above zero
	from, to float64
	log      bool
}

// newScale returns a linear scale. If lo and hi are equal, it makes room around them.
func newScale(lo, hi, from, to float64) scale {
	if !(lo < hi) {
		pad := math.Abs(lo) / 2
		if pad == 0 || math.IsNaN(lo) {
			lo, pad = 0, 1
		}
		lo, hi = max(lo-pad, -math.MaxFloat64), min(lo+pad, math.MaxFloat64)
	}
	return scale{lo: lo, hi: hi, from: from, to: to}
}

// newLogScale returns a logarithmic scale from lo to hi, which are above zero.
func newLogScale(lo, hi, from, to float64) scale {
	if !(lo < hi) {
		lo, hi = max(lo/2, math.SmallestNonzeroFloat64), min(hi*2, math.MaxFloat64)
	}
	return scale{lo: lo, hi: hi, from: from, to: to, log: true}
}

// part returns where v is between lo and hi: 0 at lo, 1 at hi.
func (s scale) part(v float64) float64 {
	t := 0.0
	if s.log {
		if v > 0 {
			lo, hi := math.Log(s.lo), math.Log(s.hi)
			t = (math.Log(v) - lo) / (hi - lo)
		}
	} else {
		// Halves: the difference of two float64 may be too large for one. Subnormal
		// numbers have no halves, but then the difference is not too large.
		if w := s.hi - s.lo; !math.IsInf(w, 0) {
			t = (v - s.lo) / w
		} else {
			t = (v/2 - s.lo/2) / (s.hi/2 - s.lo/2)
		}
	}
	if math.IsNaN(t) {
		return 0
	}
	return min(max(t, -1), 2)
}

// at returns the pixel of v.
func (s scale) at(v float64) float64 { return s.from + (s.to-s.from)*s.part(v) }

// tick is a value of an axis with a label.
type tick struct {
	v     float64
	label string
}

// niceStep returns the least of 1, 2 and 5 times a power of ten that makes at most most
// steps between lo and hi.
func niceStep(lo, hi float64, most int) float64 {
	raw := hi/float64(most) - lo/float64(most)
	if raw < 1e-300 { // powers of ten end here
		return raw
	}
	p := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5} {
		if p*m >= raw*(1-1e-9) {
			return p * m
		}
	}
	return p * 10
}

// multiples returns the multiples of step between lo and hi, at most 64.
func multiples(lo, hi, step float64) []float64 {
	var out []float64
	if !(step > 0) || math.IsInf(step, 0) {
		return out
	}
	first := math.Ceil(lo/step - 1e-9)
	for i := range 64 {
		v := (first + float64(i)) * step
		if v > hi+step*1e-9 || math.IsInf(v, 0) {
			break
		}
		if v >= lo-step*1e-9 && (len(out) == 0 || v > out[len(out)-1]) {
			out = append(out, v)
		}
	}
	return out
}

// linearTicks returns about most ticks at nice numbers.
func linearTicks(lo, hi float64, most int) []tick {
	step := niceStep(lo, hi, most)
	var out []tick
	for _, v := range multiples(lo, hi, step) {
		out = append(out, tick{v, tickLabel(v, step, max(math.Abs(lo), math.Abs(hi)))})
	}
	return distinct(out)
}

// distinct removes ticks with the label of the tick before them.
func distinct(ticks []tick) []tick {
	return slices.CompactFunc(ticks, func(a, b tick) bool { return a.label == b.label })
}

// tickLabel prints a multiple of step, with as many digits as step needs. largest is the
// largest magnitude of the axis.
func tickLabel(v, step, largest float64) string {
	if math.Abs(v) < step/2 {
		return "0"
	}
	last := int(math.Floor(math.Log10(step) + 1e-9))
	if largest < 1e6 && last >= -5 {
		return tidy(strconv.FormatFloat(v, 'f', max(0, -last), 64))
	}
	first := int(math.Floor(math.Log10(math.Abs(v)) + 1e-9))
	s := strconv.FormatFloat(v, 'e', min(max(0, first-last), 15), 64)
	return tidy(s)
}

// countTicks returns ticks at whole numbers.
func countTicks(hi float64, most int) []tick {
	step := max(1, niceStep(0, hi, most))
	var out []tick
	for _, v := range multiples(0, hi, step) {
		out = append(out, tick{v, countLabel(v)})
	}
	return out
}

// countLabel prints a round number of things: "20 k", "1.5 M".
func countLabel(v float64) string {
	units := []string{"", " k", " M", " G", " T", " P", " E"}
	unit := 0
	for ; v >= 1000 && unit < len(units)-1; unit++ {
		v /= 1000
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + units[unit]
}

// byteTicks returns ticks for numbers of bytes from zero.
func byteTicks(hi float64, most int) []tick {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	unit, size := 0, 1.0
	for unit < len(units)-1 && hi >= 1024*size {
		unit, size = unit+1, size*1024
	}
	var out []tick
	step := niceStep(0, hi/size, most)
	if unit == 0 {
		step = max(step, 1)
	}
	for _, v := range multiples(0, hi/size, step) {
		label := "0"
		if v > 0 {
			label = strconv.FormatFloat(v, 'g', 4, 64) + " " + units[unit]
		}
		out = append(out, tick{v * size, label})
	}
	return out
}

// logTicks returns ticks at powers of ten, and between them if there are few.
func logTicks(lo, hi float64, most int) []tick {
	first, last := int(math.Ceil(math.Log10(lo)-1e-9)), int(math.Floor(math.Log10(hi)+1e-9))
	plain := first >= -3 && last <= 4
	var out []tick
	if last-first < 2 {
		for e := first - 1; e <= last; e++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, float64(e)); v >= lo*(1-1e-9) && v <= hi*(1+1e-9) && v > 0 && !math.IsInf(v, 0) {
					out = append(out, tick{v, plainOrPower(v, m, e, plain)})
				}
			}
		}
		if len(out) < 2 {
			return linearTicks(lo, hi, most)
		}
		return out
	}
	stride := max(1, niceStep(float64(first), float64(last), most))
	for _, e := range multiples(float64(first), float64(last), stride) {
		if v := math.Pow(10, e); v > 0 && !math.IsInf(v, 0) {
			out = append(out, tick{v, plainOrPower(v, 1, int(e), plain)})
		}
	}
	return out
}

// plainOrPower prints v, which is m times ten to the power of e.
func plainOrPower(v, m float64, e int, plain bool) string {
	switch {
	case plain && v >= 1:
		return count(int64(v))
	case plain, m == 1 && e == 0:
		return strconv.FormatFloat(v, 'g', 4, 64)
	case m == 1:
		return power(10, e)
	}
	return strconv.FormatFloat(m, 'g', 1, 64) + "·" + power(10, e)
}

// frame is the area of a chart, with its axes.
type frame struct {
	d              *drawing
	x0, y0, x1, y1 float64 // y0 is the upper edge
	x, y           scale
}

// yAxis draws horizontal lines and their labels, and the label of the axis.
func (f *frame) yAxis(ticks []tick, label string) {
	f.d.open(`stroke="` + rule + `"`)
	for _, t := range ticks {
		f.d.line(f.x0, f.y.at(t.v), f.x1, f.y.at(t.v), "")
	}
	f.d.closeGroup()
	widest := 0.0
	for _, t := range ticks {
		f.d.write(f.x0-6, f.y.at(t.v)+4, t.label, look{size: smallSize, color: soft, anchor: "end"})
		widest = max(widest, textWidth(t.label, smallSize))
	}
	f.d.write(max(f.x0-widest-14, 12), (f.y0+f.y1)/2, label, look{color: soft, anchor: "middle", turned: true})
}

// xAxis draws the lower edge with ticks, and the label of the axis.
func (f *frame) xAxis(ticks []tick, label string) {
	f.d.line(f.x0, f.y1, f.x1, f.y1, `stroke="`+axis+`"`)
	end := math.Inf(-1)
	for _, t := range ticks {
		x := f.x.at(t.v)
		f.d.line(x, f.y1, x, f.y1+4, `stroke="`+axis+`"`)
		half := textWidth(t.label, smallSize) / 2
		at := min(max(x, f.x0-40+half), pictureWidth-4-half)
		if at-half > end {
			f.d.write(at, f.y1+17, t.label, look{size: smallSize, color: soft, anchor: "middle"})
			end = at + half + 4
		}
	}
	f.d.write((f.x0+f.x1)/2, f.y1+36, label, look{color: soft, anchor: "middle"})
}

// below is the height of an x axis.
const below = 52.0

// swatch is a colour of a legend with its meaning.
type swatch struct {
	color, text string
	hollow      bool
}

// legend draws swatches in lines and returns the y coordinate below them.
func (d *drawing) legend(x, y float64, items []swatch) float64 {
	at := x
	for _, s := range items {
		text := fit(s.text, textSize, pictureWidth-2*margin-18)
		w := 18 + textWidth(text, textSize) + 12
		if at > x && at+w > pictureWidth-margin+12 {
			at, y = x, y+lineHeight+2
		}
		attrs := `fill="` + s.color + `" rx="2"`
		if s.hollow {
			attrs = `fill="` + paper + `" stroke="` + s.color + `" stroke-width="1.5" rx="2"`
		}
		d.rect(at, y-10, 12, 12, attrs, "")
		d.write(at+18, y, text, look{})
		at += w
	}
	return y + lineHeight
}
