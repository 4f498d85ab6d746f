package plot

import (
	"fmt"
	"image"
	"image/draw"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
)

// The numbers that the cells of a heat map can show, of their finite elements. ShowMean is the
// default.
const (
	ShowMean = "mean"
	ShowMin  = "min"
	ShowMax  = "max"
	ShowAbs  = "abs" // the largest magnitude
)

// shown are the words for the numbers of cells.
var shown = map[string]string{ShowMean: "mean", ShowMin: "least", ShowMax: "largest", ShowAbs: "largest magnitude"}

// Show chooses the number that the cells of a heat map show.
func Show(what string) Option { return func(o *options) { o.show = what } }

// Heat draws a heat map.
func Heat(h *inspect.Heat, opts ...Option) *Picture {
	part := ""
	if h.Rows[1]-h.Rows[0] != h.Size[0] || h.Cols[1]-h.Cols[0] != h.Size[1] {
		part = fmt.Sprintf("rows %d to %d, columns %d to %d", h.Rows[0], h.Rows[1]-1, h.Cols[0], h.Cols[1]-1)
		if h.Dims[0] < 0 {
			part = fmt.Sprintf("elements %d to %d", h.Cols[0], h.Cols[1]-1)
		}
	}
	index := ""
	if strings.Trim(h.Index, ":, .") != "" { // otherwise it is the whole tensor
		index = "[" + h.Index + "]"
	}
	o := collect(opts)
	d, y := newDrawing(h.FQN+index, o.about, listed(h.DType+" "+shapeText(h.Shape), part, readText(h)))
	cells := h.Height * h.Width
	if h.Elements == 0 || cells <= 0 || len(h.Mean) != cells || len(h.Min) != cells || len(h.Max) != cells {
		return d.finish(d.empty(y, "the slice has no elements"))
	}
	m := &heatMap{Heat: h, d: d}
	m.values, m.show = valuesOf(h, o.show)
	m.choose()
	m.place(y + 8)
	d.image(m.f.x0, m.f.y0, m.f.x1-m.f.x0, m.f.y1-m.f.y0, dataURI(m.pixels()), "")
	m.hatch()
	m.texts()
	m.damage()
	d.rect(m.f.x0, m.f.y0, m.f.x1-m.f.x0, m.f.y1-m.f.y0, `fill="none" stroke="`+axis+`"`, "")
	m.axes()
	m.colorBar()
	y = m.f.y1 + below + 14
	if s := m.legend(); len(s) > 0 {
		y = d.legend(margin, y, s) + 4
	}
	return d.finish(d.notes(y, m.notes()...))
}

// readText says how much of the shown part was read.
func readText(h *inspect.Heat) string {
	switch {
	case len(h.Damaged) > 0:
		return "not all elements could be read"
	case h.Exact && h.Elements == 1:
		return "1 element"
	case h.Exact:
		return "all " + plural(h.Elements, "element") + " were read"
	}
	return fmt.Sprintf("a sample of %s of %s was read", count(h.Read), plural(h.Elements, "element"))
}

// heatMap is a heat map that is being drawn.
type heatMap struct {
	*inspect.Heat
	d       *drawing
	values  []inspect.Number // of the cells
	show    string           // meaning of the values
	f       frame
	colors  ramp
	lo, hi  float64 // values at the ends of the colours
	clipped bool    // some values are beyond lo or hi
	none    bool    // no cell has a value
	what    string  // meaning of the colours; empty: the value, or show
}

// valuesOf returns the numbers of the cells, and their meaning.
func valuesOf(h *inspect.Heat, show string) ([]inspect.Number, string) {
	switch show {
	case ShowMin:
		return h.Min, show
	case ShowMax:
		return h.Max, show
	case ShowAbs:
		out := make([]inspect.Number, len(h.Min))
		for i := range out {
			out[i] = max(-h.Min[i], h.Max[i]) // NaN if the cell has no finite element
		}
		return out, show
	}
	return h.Mean, ShowMean
}

// choose chooses the colours and their range. If a few cells are much larger than all
// others, the range leaves them out, so that the others can be told apart.
func (m *heatMap) choose() {
	var sizes []float64
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range m.values {
		if f := float64(v); f-f == 0 {
			lo, hi = min(lo, f), max(hi, f)
			sizes = append(sizes, math.Abs(f))
		}
	}
	m.colors = viridis
	if m.none = len(sizes) == 0; m.none {
		m.lo, m.hi = 0, 1
		return
	}
	slices.Sort(sizes)
	most, usual := sizes[len(sizes)-1], sizes[(len(sizes)-1)*199/200]
	if usual > 0 && most > 3*usual {
		most = usual
	}
	m.lo, m.hi = max(lo, -most), min(hi, most)
	m.clipped = m.lo > lo || m.hi < hi
	if lo < 0 && hi > 0 {
		m.colors, m.lo, m.hi = diverging, -most, most
	}
}

// color returns the colour of a finite value.
func (m *heatMap) color(v float64) rgb {
	if m.lo == m.hi {
		return m.colors.at(0.5)
	}
	return m.colors.at(scale{lo: m.lo, hi: m.hi, to: 1}.part(v))
}

// largest and least size of a map.
const (
	mapWidth, mapHeight = 740.0, 560.0
	leastMap            = 40.0
)

// fitMap returns the size of a map of rows × cols elements. The elements are squares if
// possible.
func fitMap(rows, cols float64) (w, h float64) {
	const largestSquare = 72
	w = min(mapWidth, cols*largestSquare)
	h = w * rows / cols
	if h > mapHeight {
		h = mapHeight
		w = min(w, h*cols/rows)
	}
	return max(w, leastMap), max(h, leastMap)
}

func (m *heatMap) place(y float64) {
	rows, cols := float64(m.Rows[1]-m.Rows[0]), float64(m.Cols[1]-m.Cols[0])
	w, h := fitMap(max(rows, 1), max(cols, 1))
	w = max(w, 200)
	m.f = frame{d: m.d, x0: 84, y0: y, x1: 84 + w, y1: y + h}
	m.f.x = newScale(float64(m.Cols[0]), float64(m.Cols[1]), m.f.x0, m.f.x1)
	m.f.y = newScale(float64(m.Rows[0]), float64(m.Rows[1]), m.f.y0, m.f.y1)
}

func at(counts []int32, i int) int32 {
	if i < len(counts) {
		return counts[i]
	}
	return 0
}

// pixels returns the map as an image. Cells are blocks of about as many pixels as the picture
// has for them, because some programs blur images that they enlarge.
func (m *heatMap) pixels() image.Image {
	_, _, w, h := m.cell(0)
	right, down := max(1, int(math.Ceil(w))), max(1, int(math.Ceil(h)))
	img := image.NewRGBA(image.Rect(0, 0, m.Width*right, m.Height*down))
	for i, v := range m.values {
		c := unreadColor
		switch f := float64(v); {
		case at(m.NaN, i) > 0:
			c = nanColor
		case at(m.PosInf, i) > 0:
			c = posInfColor
		case at(m.NegInf, i) > 0:
			c = negInfColor
		case f-f == 0:
			c = m.color(f).rgba()
		}
		at := image.Pt(i%m.Width*right, i/m.Width*down)
		draw.Draw(img, image.Rectangle{at, at.Add(image.Pt(right, down))}, image.NewUniform(c), image.Point{}, draw.Src)
	}
	return img
}

// cell returns the rectangle of a cell.
func (m *heatMap) cell(i int) (x, y, w, h float64) {
	row, col := float64(i/m.Width), float64(i%m.Width)
	w, h = (m.f.x1-m.f.x0)/float64(m.Width), (m.f.y1-m.f.y0)/float64(m.Height)
	return m.f.x0 + col*w, m.f.y0 + row*h, w, h
}

// hatch crosses cells with infinities, if they are large and few enough.
func (m *heatMap) hatch() {
	_, _, w, h := m.cell(0)
	if w < 6 || h < 6 {
		return
	}
	var p path
	n := 0
	for i := range m.values {
		if at(m.NaN, i) > 0 || at(m.PosInf, i)+at(m.NegInf, i) == 0 {
			continue
		}
		if n++; n > 1000 {
			break
		}
		x, y, w, h := m.cell(i)
		if at(m.PosInf, i) > 0 {
			p.move(x+1, y+h-1)
			p.to(x+w-1, y+1)
		}
		if at(m.NegInf, i) > 0 {
			p.move(x+1, y+1)
			p.to(x+w-1, y+h-1)
		}
	}
	if n > 0 {
		m.d.path(&p, `fill="none" stroke="`+paper+`"`, "")
	}
}

// texts writes the elements into their cells, if they fit.
func (m *heatMap) texts() {
	if len(m.Text) != len(m.values) {
		return
	}
	_, _, w, h := m.cell(0)
	size := min(smallSize, h*0.6)
	for _, s := range m.Text {
		if s != "" {
			size = min(size, 0.9*w/(textWidth(s, 1)))
		}
	}
	if size < 6 {
		return
	}
	for i, s := range m.Text {
		x, y, w, h := m.cell(i)
		color := paper
		if f := float64(m.values[i]); f-f == 0 {
			color = m.color(f).over()
		}
		m.d.write(x+w/2, y+h/2+size*0.35, s, look{size: size, color: color, anchor: "middle"})
	}
}

// indexTicks returns ticks at the middles of elements, for the elements from lo to hi.
func indexTicks(lo, hi int64, most int) []tick {
	var out []tick
	step := max(1, niceStep(float64(lo), float64(hi), most))
	for _, v := range multiples(float64(lo), float64(hi-1), step) {
		out = append(out, tick{v + 0.5, strconv.FormatFloat(v, 'f', 0, 64)})
	}
	return out
}

func (m *heatMap) axes() {
	label := func(k int, what string) string {
		if m.Dims[k] < 0 {
			return ""
		}
		return fmt.Sprintf("%s: index in dimension %d", what, m.Dims[k])
	}
	w, h := m.f.x1-m.f.x0, m.f.y1-m.f.y0
	m.f.xAxis(indexTicks(m.Cols[0], m.Cols[1], max(2, int(w/70))), label(1, "column"))
	if m.Dims[0] < 0 {
		return
	}
	var widest float64
	for _, t := range indexTicks(m.Rows[0], m.Rows[1], max(1, int(h/30))) {
		y := m.f.y.at(t.v)
		m.d.line(m.f.x0-4, y, m.f.x0, y, `stroke="`+axis+`"`)
		m.d.write(m.f.x0-7, y+4, t.label, look{size: smallSize, color: soft, anchor: "end"})
		widest = max(widest, textWidth(t.label, smallSize))
	}
	text := label(0, "row")
	if textWidth(text, textSize) > h+40 {
		text = "row"
	}
	m.d.write(max(m.f.x0-widest-14, 12), (m.f.y0+m.f.y1)/2, text, look{color: soft, anchor: "middle", turned: true})
}

// colorBar draws the colours with their values.
func (m *heatMap) colorBar() {
	if m.none {
		return
	}
	x, h := m.f.x1+28, max(m.f.y1-m.f.y0, 80)
	y0, y1 := m.f.y0, m.f.y0+h
	if m.lo == m.hi {
		m.d.rect(x, y0, 14, 14, `fill="`+m.color(m.lo).hex()+`"`, "")
		m.d.write(x+20, y0+11, number(m.lo), look{size: smallSize, color: soft})
		return
	}
	m.d.image(x, y0, 14, h, dataURI(m.colors.gradient()), "")
	s := newScale(m.lo, m.hi, y1, y0)
	ticks := linearTicks(m.lo, m.hi, max(2, int(h/40)))
	widest := 0.0
	for _, t := range ticks {
		m.d.line(x+14, s.at(t.v), x+18, s.at(t.v), `stroke="`+axis+`"`)
		m.d.write(x+22, s.at(t.v)+4, t.label, look{size: smallSize, color: soft})
		widest = max(widest, textWidth(t.label, smallSize))
	}
	m.d.write(x+22+widest+14, (y0+y1)/2, m.shows(), look{color: soft, anchor: "middle", turned: true})
}

// shows returns the meaning of the colours.
func (m *heatMap) shows() string {
	if m.what != "" {
		return m.what
	}
	if m.Elements > int64(m.Height)*int64(m.Width) {
		return shown[m.show]
	}
	if m.show == ShowAbs {
		return "magnitude"
	}
	return "value"
}

// legend explains the colours that are not in the colour bar.
func (m *heatMap) legend() []swatch {
	var nan, pos, neg, unread int64
	for i, v := range m.values {
		nan, pos, neg = nan+int64(at(m.NaN, i)), pos+int64(at(m.PosInf, i)), neg+int64(at(m.NegInf, i))
		if v.None() && at(m.NaN, i)+at(m.PosInf, i)+at(m.NegInf, i) == 0 {
			unread++
		}
	}
	var out []swatch
	add := func(n int64, color, what string) {
		if n > 0 {
			out = append(out, swatch{color: color, text: what + " (" + count(n) + ")"})
		}
	}
	add(nan, hexOf(nanColor), "NaN")
	add(pos, hexOf(posInfColor), "+inf")
	add(neg, hexOf(negInfColor), "−inf")
	add(unread, hexOf(unreadColor), "no element was read")
	return out
}

func (m *heatMap) notes() []string {
	var out []string
	if n := len(m.Damaged); n > 0 {
		out = append(out, "Not drawn, and striped: "+plural(n, "chunk")+" that could not be read. The first problem: "+m.Damaged[0].Problem)
	}
	if m.Elements > int64(m.Height)*int64(m.Width) {
		s := "A cell shows the " + shown[m.show] + " of its finite elements"
		if !m.Exact {
			s += " that were read"
		}
		out = append(out, s+", and NaN or infinity if it has one.")
	}
	if !m.none && !m.Low.None() {
		out = append(out, fmt.Sprintf("The least finite element is %s, the largest %s.", number(float64(m.Low)), number(float64(m.High))))
	}
	if m.clipped {
		out = append(out, "The colours end where 99.5% of the cells end; cells beyond that have the colour of the end.")
	}
	return out
}
