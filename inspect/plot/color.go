package plot

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
)

// The colours of text, lines and backgrounds.
const (
	ink   = "#1A1A1A"
	soft  = "#555555"
	rule  = "#E3E3E3"
	axis  = "#888888"
	paper = "#FFFFFF"
	alarm = "#D55E00"
	other = "#999999"
)

// categories are the colours of Okabe and Ito, which the colour-blind can tell apart.
var categories = []string{"#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"}

// category returns the colour of the i-th category. There are only len(categories) of them.
func category(i int) string {
	if i < 0 || i >= len(categories) {
		return other
	}
	return categories[i]
}

// rgb is a colour of a scale.
type rgb struct{ r, g, b float64 }

func (c rgb) rgba() color.RGBA {
	round := func(v float64) uint8 { return uint8(math.Round(min(max(v, 0), 255))) }
	return color.RGBA{round(c.r), round(c.g), round(c.b), 255}
}

func (c rgb) hex() string {
	v := c.rgba()
	return fmt.Sprintf("#%02X%02X%02X", v.R, v.G, v.B)
}

// luminance is the brightness of a colour, from 0 to 1.
func (c rgb) luminance() float64 { return (0.299*c.r + 0.587*c.g + 0.114*c.b) / 255 }

// over returns a colour for text on c.
func (c rgb) over() string {
	if c.luminance() < 0.55 {
		return paper
	}
	return ink
}

func parseHex(s string) rgb {
	var r, g, b uint8
	if _, err := fmt.Sscanf(s, "#%02x%02x%02x", &r, &g, &b); err != nil {
		return rgb{}
	}
	return rgb{float64(r), float64(g), float64(b)}
}

// mix returns the colour that is the part t of the way from a to b.
func mix(a, b rgb, t float64) rgb {
	return rgb{a.r + (b.r-a.r)*t, a.g + (b.g-a.g)*t, a.b + (b.b-a.b)*t}
}

// tint returns a colour mixed with white. strength 1 is the colour itself.
func tint(c string, strength float64) string {
	return mix(rgb{255, 255, 255}, parseHex(c), strength).hex()
}

// ramp is a scale of colours from 0 to 1.
type ramp []rgb

func newRamp(colors ...string) ramp {
	var out ramp
	for _, c := range colors {
		out = append(out, parseHex(c))
	}
	return out
}

var (
	// viridis is for values on one side of zero and for sequences.
	viridis = newRamp("#440154", "#482878", "#3E4A89", "#31688E", "#26828E", "#1F9E89", "#35B779", "#6DCD59", "#B4DE2C", "#FDE725")
	// diverging is for values on both sides of zero, which is in its middle.
	diverging = newRamp("#2166AC", "#4393C3", "#92C5DE", "#D1E5F0", "#F7F7F7", "#FEE0B6", "#FDB863", "#E08214", "#B35806")
)

// at returns the colour of t between 0 and 1.
func (r ramp) at(t float64) rgb {
	if !(t > 0) { // NaN too
		return r[0]
	}
	if t >= 1 {
		return r[len(r)-1]
	}
	f := t * float64(len(r)-1)
	i := int(f)
	return mix(r[i], r[i+1], f-float64(i))
}

// The colours of elements that are not finite.
var (
	nanColor    = color.RGBA{255, 0, 255, 255}
	posInfColor = color.RGBA{0, 0, 0, 255}
	negInfColor = color.RGBA{128, 128, 128, 255}
	unreadColor = color.RGBA{225, 225, 225, 255}
)

func hexOf(c color.RGBA) string { return fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B) }

// dataURI returns an image as the address of a PNG.
func dataURI(img image.Image) string {
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil { // only of an image without pixels
		return ""
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

// gradient returns an image of a ramp as a column, the largest value at the top.
func (r ramp) gradient() image.Image {
	const steps = 128
	img := image.NewRGBA(image.Rect(0, 0, 1, steps))
	for i := range steps {
		img.SetRGBA(0, i, r.at(1-(float64(i)+0.5)/steps).rgba())
	}
	return img
}
