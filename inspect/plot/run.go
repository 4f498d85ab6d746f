package plot

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// RunPoint is a checkpoint of a run.
type RunPoint struct {
	Label string
	Step  *int64 // nil: unknown
	// Local and Remote are the bytes of the copies. Zero: there is no such copy.
	Local, Remote int64
	// LocalRemoved and RemoteRemoved are set if the retention policy would remove the copy.
	LocalRemoved, RemoteRemoved bool
}

// Run draws the sizes of the checkpoints of a run, by step if all steps are known.
func Run(points []RunPoint, opts ...Option) *Picture {
	c := &runChart{points: slices.Clone(points)}
	var local, remote, removed int64
	for _, p := range points {
		local, remote = local+p.Local, remote+p.Remote
		c.most = max(c.most, p.Local, p.Remote)
		c.local, c.remote = c.local || p.Local > 0, c.remote || p.Remote > 0
		if p.LocalRemoved || p.RemoteRemoved {
			removed++
		}
	}
	var total []string
	if c.local {
		total = append(total, byteSize(float64(local))+" local")
	}
	if c.remote {
		total = append(total, byteSize(float64(remote))+" remote")
	}
	d, y := newDrawing("Checkpoints by size", listed(collect(opts).about, plural(len(points), "checkpoint"), strings.Join(total, " · ")))
	c.d = d
	if c.most == 0 {
		why := "the checkpoints have no bytes"
		if len(points) == 0 {
			why = "there are no checkpoints"
		}
		return d.finish(d.empty(y, why))
	}
	y = d.legend(margin, y+12, c.legend(removed > 0))
	c.axes(y + 4)
	c.draw()
	return d.finish(c.f.y1 + below + 8)
}

// runChart draws checkpoints.
type runChart struct {
	d             *drawing
	f             frame
	points        []RunPoint
	most          int64
	local, remote bool // there are such copies
	bySteps       bool
}

func (c *runChart) legend(removed bool) []swatch {
	var out []swatch
	if c.local {
		out = append(out, swatch{color: category(0), text: "local copy"})
	}
	if c.remote {
		out = append(out, swatch{color: category(1), text: "remote copy"})
	}
	if removed {
		out = append(out, swatch{color: soft, text: "hollow: prune would remove it", hollow: true})
	}
	return out
}

func (c *runChart) axes(y float64) {
	c.f = frame{d: c.d, x0: 84, x1: pictureWidth - 32, y0: y, y1: y + 300}
	f := &c.f
	f.y = newScale(0, float64(c.most)*1.06, f.y1, f.y0)
	f.yAxis(byteTicks(float64(c.most)*1.06, 6), "size")
	c.bySteps = !slices.ContainsFunc(c.points, func(p RunPoint) bool { return p.Step == nil })
	if !c.bySteps {
		f.x = newScale(-0.5, float64(len(c.points))-0.5, f.x0, f.x1)
		by := max(1, len(c.points)*90/int(f.x1-f.x0))
		var ticks []tick
		for i := 0; i < len(c.points); i += by {
			ticks = append(ticks, tick{float64(i), fit(c.points[i].Label, smallSize, max(84, (f.x1-f.x0)/float64(len(c.points))-6))})
		}
		f.xAxis(ticks, "checkpoint")
		return
	}
	slices.SortStableFunc(c.points, func(a, b RunPoint) int {
		return cmp.Compare(*a.Step, *b.Step)
	})
	first, last := float64(*c.points[0].Step), float64(*c.points[len(c.points)-1].Step)
	if first == last {
		f.x = newScale(first-1, first+1, f.x0, f.x1)
		f.xAxis([]tick{{first, stepLabel(first, 1)}}, "step")
		return
	}
	f.x = newScale(first, last, f.x0+20, f.x1-20)
	step := max(1, niceStep(first, last, 10))
	var ticks []tick
	for _, v := range multiples(first, last, step) {
		ticks = append(ticks, tick{v, stepLabel(v, step)})
	}
	f.xAxis(ticks, "step")
}

func (c *runChart) x(i int) float64 {
	if c.bySteps {
		return c.f.x.at(float64(*c.points[i].Step))
	}
	return c.f.x.at(float64(i))
}

// draw draws bars or, if there is no room for bars, points.
func (c *runChart) draw() {
	room := 60.0
	for i := 1; i < len(c.points); i++ {
		room = min(room, c.x(i)-c.x(i-1))
	}
	if room < 6 {
		c.dots()
		return
	}
	width := min(room*0.8, 36)
	both := c.local && c.remote
	if both {
		width /= 2
	}
	for i := range c.points {
		p, x := &c.points[i], c.x(i)
		left := x - width/2
		if both {
			left = x - width
		}
		if p.Local > 0 {
			c.bar(left, width, p.Local, category(0), p.LocalRemoved, p.tip("local", p.Local, p.LocalRemoved))
		}
		if both {
			left = x
		}
		if p.Remote > 0 {
			c.bar(left, width, p.Remote, category(1), p.RemoteRemoved, p.tip("remote", p.Remote, p.RemoteRemoved))
		}
	}
}

func (c *runChart) bar(x, w float64, bytes int64, color string, hollow bool, tip string) {
	y := min(c.f.y.at(float64(bytes)), c.f.y1-1)
	attrs := `fill="` + color + `"`
	if hollow {
		attrs = `fill="` + paper + `" stroke="` + color + `" stroke-width="1.5"`
		x, w, y = x+0.75, w-1.5, y+0.75
	}
	c.d.rect(x+0.5, y, w-1, c.f.y1-y, attrs, tip)
}

// dots draws circles for local and diamonds for remote copies. Copies at the same pixel are
// drawn once.
func (c *runChart) dots() {
	type key struct {
		x, y   int
		remote bool
		hollow bool
	}
	seen := map[key]bool{}
	draw := func(i int, bytes int64, remote, hollow bool, tip string) {
		x, y := c.x(i), c.f.y.at(float64(bytes))
		k := key{int(math.Round(x / 2)), int(math.Round(y / 2)), remote, hollow}
		if bytes <= 0 || seen[k] {
			return
		}
		seen[k] = true
		color := category(0)
		if remote {
			color = category(1)
		}
		attrs := `fill="` + color + `"`
		if hollow {
			attrs = `fill="` + paper + `" stroke="` + color + `" stroke-width="1.5"`
		}
		if !remote {
			c.d.circle(x, y, 3, attrs, tip)
			return
		}
		var p path
		p.move(x, y-4)
		p.to(x+4, y)
		p.to(x, y+4)
		p.to(x-4, y)
		p.close()
		c.d.path(&p, attrs, tip)
	}
	for i := range c.points {
		p := &c.points[i]
		draw(i, p.Local, false, p.LocalRemoved, p.tip("local", p.Local, p.LocalRemoved))
		draw(i, p.Remote, true, p.RemoteRemoved, p.tip("remote", p.Remote, p.RemoteRemoved))
	}
}

func (p *RunPoint) tip(where string, bytes int64, removed bool) string {
	text := fit(p.Label, 1, 200)
	if p.Step != nil {
		text += ", step " + count(*p.Step)
	}
	text += ", " + where + ": " + byteSize(float64(bytes))
	if removed {
		text += ", prune would remove it"
	}
	return text
}
