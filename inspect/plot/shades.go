package plot

import "math"

// Shades are numbers of names, which Sizes shows as colours instead of the dtypes.
type Shades struct {
	// Title names the numbers.
	Title string
	// Values has a number for each row of the names. NaN: there is none.
	Values []float64
	// NaN and Inf report whether the tensor of a row has such elements.
	NaN, Inf []bool
	// Log chooses a logarithmic scale. Share means that the numbers are shares.
	Log, Share bool

	scale scale
	any   bool
}

// Shaded colours names by numbers.
func Shaded(s *Shades) Option {
	return func(o *options) {
		lo, hi := math.Inf(1), 0.0
		for _, v := range s.Values {
			if v-v == 0 && (v > 0 || !s.Log) {
				lo, hi, s.any = min(lo, v), max(hi, v), true
			}
		}
		s.scale = scale{lo: 0, hi: hi, to: 1}
		if s.Log && s.any {
			s.scale = scale{lo: lo, hi: hi, to: 1, log: true}
		}
		o.shades = s
	}
}

// shade is the number of a node: the largest of the names below it.
type shade struct {
	value    float64 // NaN: none
	nan, inf bool
}

var noShade = shade{value: math.NaN()}

// with returns the larger of two shades.
func (s shade) with(o shade) shade {
	if math.IsNaN(s.value) || o.value > s.value {
		s.value = o.value
	}
	return shade{s.value, s.nan || o.nan, s.inf || o.inf}
}

func (s *Shades) of(row int) shade { return shade{s.Values[row], s.NaN[row], s.Inf[row]} }

func (s *Shades) color(v shade) string {
	switch {
	case v.nan:
		return hexOf(nanColor)
	case v.inf || math.IsInf(v.value, 1):
		return hexOf(posInfColor)
	case math.IsNaN(v.value):
		return hexOf(unreadColor)
	case s.scale.lo == s.scale.hi:
		return viridis.at(0.5).hex()
	}
	return viridis.at(s.scale.part(max(v.value, s.scale.lo))).hex()
}

func (s *Shades) text(v float64) string {
	if s.Share {
		return percent(v, 1)
	}
	return number(v)
}

// legend draws the colours with the numbers at their ends, and returns the y coordinate below.
func (s *Shades) legend(d *drawing, y float64) float64 {
	const width, height, pieces = 200.0, 12.0, 50
	x := margin
	if s.any {
		low := s.text(s.scale.lo)
		d.write(x, y, low, look{})
		x = math.Round(x + textWidth(low, textSize) + 8) // whole pixels have no seams
		for i := range pieces {
			d.rect(x+float64(i)*width/pieces, y-10, width/pieces, height, `fill="`+viridis.at((float64(i)+0.5)/pieces).hex()+`"`, "")
		}
		x += width + 8
		high := s.text(s.scale.hi)
		d.write(x, y, high, look{})
		x += textWidth(high, textSize) + 24
	}
	return d.legend(x, y, []swatch{{color: hexOf(nanColor), text: "has NaN"}, {color: hexOf(posInfColor), text: "has infinities"}, {color: hexOf(unreadColor), text: "no value"}})
}

// tip describes a node's number.
func (s *Shades) tip(v shade) string {
	text := "\nno value"
	if !math.IsNaN(v.value) {
		text = "\n" + s.text(v.value) + ": " + s.Title
	}
	if v.nan {
		text += ", has NaN"
	}
	if v.inf {
		text += ", has infinities"
	}
	return text
}
