package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// curve is the loss of each step of a run.
type curve struct {
	name, color string
	loss        []float64
}

// writeSVG draws curves. marks are steps to mark with a line and a word.
func writeSVG(w io.Writer, title string, curves []curve, marks map[int]string) error {
	const width, height, left, top, right, bottom = 860, 420, 60, 40, 20, 50
	last, low, high := 1, math.Inf(1), math.Inf(-1)
	for _, c := range curves {
		last = max(last, len(c.loss)-1)
		for _, v := range c.loss {
			low, high = min(low, v), max(high, v)
		}
	}

	high = max(high, low+1e-3)
	x := func(step float64) float64 { return left + step/float64(last)*(width-left-right) }
	y := func(loss float64) float64 { return top + (high-loss)/(high-low)*(height-top-bottom) }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/><text x="%d" y="22" font-size="15">%s</text>`+"\n", width, height, left, title)

	for i := range 5 {
		loss := low + (high-low)*float64(i)/4
		step := float64(last) * float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.2f</text>`+"\n",
			left, y(loss), width-right, y(loss), left-6, y(loss)+4, loss)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.0f</text>`+"\n", x(step), height-bottom+18, step)
	}

	for step, word := range marks {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#999" stroke-dasharray="4 3"/><text x="%.1f" y="%d" fill="#555">%s</text>`+"\n",
			x(float64(step)), top, x(float64(step)), height-bottom, x(float64(step))+4, top+12, word)
	}

	for i, c := range curves {
		var points strings.Builder
		for j, v := range c.loss {
			fmt.Fprintf(&points, "%.1f,%.1f ", x(float64(j)), y(v))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-opacity="0.7"/>`+"\n", points.String(), c.color)
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", left+10+i*190, height-10, c.color, c.name)
	}

	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
