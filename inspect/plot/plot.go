// Package plot draws the results of package inspect as pictures in SVG. It reads no
// checkpoint and computes no statistics. A picture stands alone: it refers to no other file,
// it has a white background for documents, and the same result gives the same bytes. Text
// from a checkpoint is escaped, and every coordinate is a finite number.
package plot

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Picture is a finished picture.
type Picture struct{ svg []byte }

// SVG returns the picture. The caller must not change it.
func (p *Picture) SVG() []byte { return p.svg }

// WriteTo implements io.WriterTo.
func (p *Picture) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(p.svg)
	return int64(n), err
}

// Option changes how a picture is drawn.
type Option func(*options)

type options struct {
	about     string
	logCounts bool
	show      string
	shades    *Shades
}

func collect(opts []Option) options {
	var o options
	for _, set := range opts {
		set(&o)
	}
	return o
}

// About writes a text below the title: which checkpoint or run the picture shows.
func About(text string) Option { return func(o *options) { o.about = text } }

// LogCounts gives histograms a logarithmic axis of counts, so that rare values are visible.
func LogCounts(o *options) { o.logCounts = true }

// All pictures have the same width. Their height depends on the content.
const (
	pictureWidth = 960.0
	margin       = 16.0
)

// The sizes of text, and the height of a line.
const (
	titleSize, textSize, smallSize = 16.0, 12.0, 11.0
	lineHeight                     = 16.0
)

const fonts = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"

// drawing is a picture that is being drawn. Coordinates are pixels from the upper left
// corner.
type drawing struct {
	title, desc string
	body        bytes.Buffer
}

// newDrawing draws the title and, below it, lines of text. It returns the drawing and the
// y coordinate below them.
func newDrawing(title string, lines ...string) (*drawing, float64) {
	d := &drawing{title: title}
	d.write(margin, 26, fit(title, titleSize*1.08, pictureWidth-2*margin), look{size: titleSize, bold: true})
	y := 46.0
	var said []string
	for _, l := range lines {
		if l == "" {
			continue
		}
		said = append(said, strings.TrimSuffix(l, "."))
		y = d.paragraph(margin, y, pictureWidth-2*margin, l, look{color: soft})
	}
	d.desc = strings.Join(said, ". ")
	return d, y - 4
}

// notes draws lines of text below everything else and returns the y coordinate below them.
func (d *drawing) notes(y float64, notes ...string) float64 {
	for _, n := range notes {
		if n != "" {
			y = d.paragraph(margin, y, pictureWidth-2*margin, n, look{size: smallSize, color: soft})
			d.desc += ". " + strings.TrimSuffix(n, ".")
		}
	}
	return y
}

// empty draws the reason for an empty chart.
func (d *drawing) empty(y float64, why string) float64 {
	d.rect(margin, y+8, pictureWidth-2*margin, 120, `fill="#F7F7F7" stroke="#DDDDDD"`, "")
	d.write(pictureWidth/2, y+8+64, why, look{color: soft, anchor: "middle"})
	d.desc += ". " + why
	return y + 8 + 120 + 20
}

// finish returns the picture, which ends at the y coordinate height.
func (d *drawing) finish(height float64) *Picture {
	var b bytes.Buffer
	w, h := num(pictureWidth), num(math.Ceil(height))
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" role="img" font-family="%s" font-size="%s" fill="%s">`+"\n",
		w, h, w, h, fonts, num(textSize), ink)
	fmt.Fprintf(&b, "<title>%s</title>\n<desc>%s</desc>\n", escape(d.title), escape(strings.TrimPrefix(d.desc, ". ")))
	fmt.Fprintf(&b, `<rect width="%s" height="%s" fill="%s"/>`+"\n", w, h, paper)
	b.Write(d.body.Bytes())
	b.WriteString("</svg>\n")
	return &Picture{b.Bytes()}
}

// num prints a coordinate with at most two digits after the point.
func num(v float64) string {
	const far = 1e6
	if math.IsNaN(v) {
		v = 0
	}
	v = math.Round(min(max(v, -far), far)*100) / 100
	if v == 0 {
		return "0" // not -0
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// rect draws a rectangle. tip is shown if the pointer is over it.
func (d *drawing) rect(x, y, w, h float64, attrs, tip string) {
	d.shape(fmt.Sprintf(`rect x="%s" y="%s" width="%s" height="%s"`, num(x), num(y), num(max(0, w)), num(max(0, h))), attrs, tip)
}

func (d *drawing) circle(x, y, r float64, attrs, tip string) {
	d.shape(fmt.Sprintf(`circle cx="%s" cy="%s" r="%s"`, num(x), num(y), num(r)), attrs, tip)
}

func (d *drawing) line(x1, y1, x2, y2 float64, attrs string) {
	d.shape(fmt.Sprintf(`line x1="%s" y1="%s" x2="%s" y2="%s"`, num(x1), num(y1), num(x2), num(y2)), attrs, "")
}

func (d *drawing) path(p *path, attrs, tip string) {
	d.shape(fmt.Sprintf(`path d="%s"`, strings.TrimSpace(p.String())), attrs, tip)
}

func (d *drawing) shape(what, attrs, tip string) {
	fmt.Fprintf(&d.body, "<%s %s", what, attrs)
	if tip == "" {
		d.body.WriteString("/>\n")
		return
	}
	fmt.Fprintf(&d.body, "><title>%s</title></%s>\n", escape(tip), what[:strings.IndexByte(what, ' ')])
}

// open begins a group with attributes that its shapes share, and closeGroup ends it.
func (d *drawing) open(attrs string) { fmt.Fprintf(&d.body, "<g %s>\n", attrs) }
func (d *drawing) closeGroup()       { d.body.WriteString("</g>\n") }

// image draws a PNG. Its pixels keep sharp edges: browsers know the style for that, and
// other programs the attribute.
func (d *drawing) image(x, y, w, h float64, dataURI, tip string) {
	d.shape(fmt.Sprintf(`image x="%s" y="%s" width="%s" height="%s" preserveAspectRatio="none" image-rendering="optimizeSpeed" href="%s"`,
		num(x), num(y), num(w), num(h), dataURI), `style="image-rendering:pixelated"`, tip)
}

// look is how text looks. Zero values: the usual size, ink, at the start, not turned.
type look struct {
	size   float64
	color  string
	anchor string // "middle" or "end"
	bold   bool
	turned bool // reads upwards
	halo   bool // stands on a white edge, so that it can be read above lines
}

func (l look) height() float64 {
	if l.size == 0 {
		return textSize
	}
	return l.size
}

// write draws a line of text on the base line y.
func (d *drawing) write(x, y float64, text string, l look) {
	if text == "" {
		return
	}
	fmt.Fprintf(&d.body, `<text x="%s" y="%s"`, num(x), num(y))
	if l.size != 0 && l.size != textSize {
		fmt.Fprintf(&d.body, ` font-size="%s"`, num(l.size))
	}
	if l.color != "" {
		fmt.Fprintf(&d.body, ` fill="%s"`, l.color)
	}
	if l.anchor != "" {
		fmt.Fprintf(&d.body, ` text-anchor="%s"`, l.anchor)
	}
	if l.bold {
		d.body.WriteString(` font-weight="600"`)
	}
	if l.turned {
		fmt.Fprintf(&d.body, ` transform="rotate(-90 %s %s)"`, num(x), num(y))
	}
	if l.halo {
		fmt.Fprintf(&d.body, ` stroke="%s" stroke-width="3" stroke-linejoin="round" paint-order="stroke"`, paper)
	}
	fmt.Fprintf(&d.body, ">%s</text>\n", escape(text))
}

// paragraph draws text in lines of at most width and returns the y coordinate below it.
func (d *drawing) paragraph(x, y, width float64, text string, l look) float64 {
	line := ""
	flush := func() {
		d.write(x, y, fit(line, l.height(), width), l)
		y += lineHeight
	}
	for word := range strings.FieldsSeq(text) {
		if line != "" && textWidth(line+" "+word, l.height()) > width {
			flush()
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		flush()
	}
	return y
}

// path is the outline of a shape.
type path struct{ strings.Builder }

func (p *path) move(x, y float64) { p.step('M', x, y) }
func (p *path) to(x, y float64)   { p.step('L', x, y) }
func (p *path) close()            { p.WriteByte('Z') }

func (p *path) step(op byte, x, y float64) {
	p.WriteByte(op)
	p.WriteString(num(x))
	p.WriteByte(' ')
	p.WriteString(num(y))
}
