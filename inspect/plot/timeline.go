package plot

import (
	"fmt"
	"image"
	"math"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

const (
	// mostRows is the most ranks with a row of their own. Of more ranks, typicalRows are
	// drawn, and all ranks together as pixels.
	mostRows, typicalRows = 64, 24
	// bandHeight is the most height of the pixels.
	bandHeight = 240.0
)

// Timeline draws when the ranks of a save were in which phase.
func Timeline(t *inspect.Timeline, opts ...Option) *Picture {
	step := ""
	if t.Step != nil {
		step = "step " + count(*t.Step)
	}
	slow := 0
	for i := range t.Ranks {
		if t.Ranks[i].Slow {
			slow++
		}
	}
	slowText := ""
	if slow > 0 {
		slowText = plural(slow, "slow rank")
	}
	save := ""
	if t.SaveID != "" {
		save = "save " + name(t.SaveID)
	}
	d, y := newDrawing("Timeline of a save", listed(collect(opts).about, save, step, plural(len(t.Ranks), "rank"), seconds(t.Seconds), slowText))
	if len(t.Ranks) == 0 {
		return d.finish(d.empty(y, "no rank has a timeline"))
	}
	c := &rankChart{Timeline: t, d: d, colors: phaseColors(t.Phases)}
	y = c.table(y + 12)
	var notes []string
	if len(t.Ranks) > mostRows {
		d.write(margin, y+8, "The slowest ranks, then ranks around the median", look{bold: true})
		y = c.rows(t.Typical(typicalRows), y+20)
		d.write(margin, y+12, "All ranks", look{bold: true})
		var by int
		y, by = c.band(y + 24)
		if by > 1 {
			notes = append(notes, fmt.Sprintf("All ranks: a line shows the slowest of %d neighbours. Slow ranks are marked at the right.", by))
		}
	} else {
		y = c.rows(t.Ranks, y+4)
	}
	if slow > 0 {
		notes = append(notes, "A slow rank was busy much longer than the median rank, so that the others had to wait for it.")
	}
	return d.finish(d.notes(y+14, notes...))
}

// phaseColors returns the colours of phases. The usual phases have the same colour in all
// pictures.
func phaseColors(phases []inspect.PhaseTotals) map[string]string {
	out := map[string]string{
		meta.PhaseStage: "#56B4E9", meta.PhasePlan: "#E69F00", meta.PhaseGlobalPlan: "#F0E442",
		meta.PhaseWrite: "#009E73", meta.PhaseCommit: "#CC79A7", meta.PhaseRead: "#0072B2",
	}
	further := []string{"#D55E00", "#000000", "#999999"}
	for i := 0; i < len(phases); i++ {
		if _, ok := out[phases[i].Name]; !ok {
			out[phases[i].Name] = further[0]
			further = append(further[1:], other)
		}
	}
	return out
}

// rankChart draws phases of ranks over time.
type rankChart struct {
	*inspect.Timeline
	d      *drawing
	colors map[string]string
}

func (c *rankChart) color(phase string) string {
	if s := c.colors[phase]; s != "" {
		return s
	}
	return other
}

// table draws the totals of the phases, which is the legend too.
func (c *rankChart) table(y float64) float64 {
	columns := []float64{margin + 150, margin + 230, margin + 310, margin + 380, margin + 470, margin + 580}
	right := look{size: smallSize, color: soft, anchor: "end"}
	for i, h := range []string{"ranks", "median", "slowest", "rank", "bytes", "rate"} {
		c.d.write(columns[i], y, h, right)
	}
	for _, p := range c.Phases {
		y += lineHeight
		c.d.rect(margin, y-10, 12, 12, `fill="`+c.color(p.Name)+`" rx="2"`, "")
		c.d.write(margin+18, y, fit(p.Name, textSize, 90), look{})
		size, rate := "", ""
		if p.Bytes > 0 {
			size = byteSize(float64(p.Bytes))
			if p.Slowest > 0 {
				rate = byteSize(float64(p.Bytes)/p.Slowest) + "/s"
			}
		}
		for i, s := range []string{count(p.Ranks), seconds(p.Median), seconds(p.Slowest), count(p.SlowestRank), size, rate} {
			c.d.write(columns[i], y, s, look{anchor: "end"})
		}
	}
	return y + lineHeight
}

// The columns of the rows.
const (
	barsLeft, barsRight = 84.0, 680.0
	busyRight           = 738.0
	writtenRight        = 812.0
	rateRight           = 906.0
)

func (c *rankChart) frame(y0, y1 float64) frame {
	f := frame{d: c.d, x0: barsLeft, x1: barsRight, y0: y0, y1: y1}
	f.x = newScale(0, c.Seconds, f.x0, f.x1)
	return f
}

// timeAxis draws the axis of seconds below a frame.
func (c *rankChart) timeAxis(f *frame) {
	factor, unit := 1.0, "seconds"
	switch {
	case c.Seconds < 1e-3:
		factor, unit = 1e6, "microseconds"
	case c.Seconds < 1:
		factor, unit = 1e3, "milliseconds"
	}
	ticks := linearTicks(f.x.lo*factor, f.x.hi*factor, 8)
	for i := range ticks {
		ticks[i].v /= factor
		f.d.line(f.x.at(ticks[i].v), f.y0, f.x.at(ticks[i].v), f.y1, `stroke="`+rule+`"`)
	}
	f.xAxis(ticks, unit+" since the beginning of the save")
}

// rows draws a row for each of some ranks.
func (c *rankChart) rows(ranks []inspect.RankTimeline, y float64) float64 {
	h := min(max(600/float64(len(ranks)), 12), 22)
	small := look{size: smallSize, color: soft, anchor: "end"}
	c.d.write(barsLeft-7, y+12, "rank", small)
	c.d.write(busyRight, y+12, "busy", small)
	c.d.write(writtenRight, y+12, "written", small)
	c.d.write(rateRight, y+12, "rate", small)
	y += 18
	f := c.frame(y, y+h*float64(len(ranks)))
	c.timeAxis(&f)
	for i := range ranks {
		c.row(&f, &ranks[i], y+float64(i)*h, h)
	}
	return f.y1 + below
}

func (c *rankChart) row(f *frame, r *inspect.RankTimeline, y, h float64) {
	size := min(smallSize, h-2)
	l := look{size: size, anchor: "end"}
	if r.Slow {
		c.d.rect(margin, y, pictureWidth-2*margin, h, `fill="`+alarm+`" fill-opacity="0.12"`, "")
		l.bold, l.color = true, "#A84300"
		c.d.write(pictureWidth-margin, y+h/2+size*0.36, "slow", l)
	}
	base := y + h/2 + size*0.36
	c.d.write(barsLeft-7, base, strconv.Itoa(r.Rank), l)
	c.d.write(busyRight, base, seconds(r.Busy), l)
	if i := slices.IndexFunc(r.Phases, func(p inspect.RankPhase) bool { return p.Name == meta.PhaseWrite }); i >= 0 {
		p := r.Phases[i]
		c.d.write(writtenRight, base, byteSize(float64(p.Bytes)), l)
		if p.End > p.Start {
			c.d.write(rateRight, base, byteSize(float64(p.Bytes)/(p.End-p.Start))+"/s", l)
		}
	}
	lane, lanes := lanes(r.Phases)
	for i, p := range r.Phases {
		x0, x1 := f.x.at(p.Start), f.x.at(p.End)
		tip := fmt.Sprintf("rank %d, %s: %s to %s (%s)", r.Rank, p.Name, seconds(p.Start), seconds(p.End), seconds(p.End-p.Start))
		if p.Bytes > 0 {
			tip += ", " + byteSize(float64(p.Bytes))
		}
		bar := h - 2
		if overlapping(r.Phases, i) {
			bar /= float64(lanes)
		}
		c.d.rect(x0, y+1+bar*float64(lane[i]), max(x1-x0, 0.75), bar, `fill="`+c.color(p.Name)+`"`, tip)
	}
}

// lanes distributes phases, which are in the order of their beginnings, so that phases at
// the same time are below each other. It returns the lane of each phase and the number of
// lanes.
func lanes(phases []inspect.RankPhase) ([]int, int) {
	out := make([]int, len(phases))
	var ends []float64
	for i, p := range phases {
		lane := slices.IndexFunc(ends, func(end float64) bool { return end <= p.Start })
		if lane < 0 {
			lane, ends = len(ends), append(ends, 0)
		}
		out[i], ends[lane] = lane, p.End
	}
	return out, max(1, len(ends))
}

// overlapping reports whether another phase is at the same time as the i-th.
func overlapping(phases []inspect.RankPhase, i int) bool {
	for j, p := range phases {
		if j != i && p.Start < phases[i].End && phases[i].Start < p.End {
			return true
		}
	}
	return false
}

// band draws all ranks as pixels. It returns the y coordinate below and how many ranks share
// a line of pixels.
func (c *rankChart) band(y float64) (float64, int) {
	n := len(c.Ranks)
	by := (n + int(bandHeight) - 1) / int(bandHeight)
	lines := (n + by - 1) / by
	f := c.frame(y, y+max(float64(lines), 96))
	f.y = newScale(0, float64(lines*by), f.y0, f.y1)
	c.timeAxis(&f)
	const width = 596
	img := image.NewRGBA(image.Rect(0, 0, width, lines))
	for line := range lines {
		group := c.Ranks[line*by : min((line+1)*by, n)]
		slowest := &group[0]
		for i := range group {
			if group[i].Busy > slowest.Busy {
				slowest = &group[i]
			}
		}
		for _, p := range slowest.Phases {
			x0, x1 := int(scalePart(c.Seconds, p.Start)*width), int(math.Ceil(scalePart(c.Seconds, p.End)*width))
			color := parseHex(c.color(p.Name)).rgba()
			for x := x0; x < min(max(x1, x0+1), width); x++ {
				img.SetRGBA(x, line, color)
			}
		}
	}
	c.d.image(f.x0, f.y0, f.x1-f.x0, f.y1-f.y0, dataURI(img), "")
	for _, t := range rankTicks(n) {
		at := f.y.at(t.v)
		c.d.line(f.x0-4, at, f.x0, at, `stroke="`+axis+`"`)
		c.d.write(f.x0-7, at+4, t.label, look{size: smallSize, color: soft, anchor: "end"})
	}
	c.d.write(24, (f.y0+f.y1)/2, "rank", look{color: soft, anchor: "middle", turned: true})
	c.slowMarks(&f)
	return f.y1 + below, by
}

// scalePart returns which part of a whole v is, from 0 to 1.
func scalePart(whole, v float64) float64 {
	switch {
	case !(whole > 0) || !(v > 0):
		return 0
	case v >= whole:
		return 1
	}
	return v / whole
}

func rankTicks(n int) []tick {
	var out []tick
	for _, v := range multiples(0, float64(n-1), max(1, niceStep(0, float64(n), 6))) {
		out = append(out, tick{v + 0.5, strconv.FormatFloat(v, 'f', 0, 64)})
	}
	return out
}

// slowMarks marks slow ranks at the right of a frame, and writes their numbers if there is
// room.
func (c *rankChart) slowMarks(f *frame) {
	var marks path
	marked, end := map[int]bool{}, math.Inf(-1)
	for i := range c.Ranks {
		if !c.Ranks[i].Slow {
			continue
		}
		y := f.y.at(float64(i) + 0.5)
		if px := int(y); !marked[px] {
			marked[px] = true
			marks.move(f.x1+3, y)
			marks.to(f.x1+11, y-3)
			marks.to(f.x1+11, y+3)
			marks.close()
		}
		if y-11 >= end {
			c.d.write(f.x1+15, y+4, fmt.Sprintf("rank %d: %s", c.Ranks[i].Rank, seconds(c.Ranks[i].Busy)), look{size: smallSize, color: "#A84300"})
			end = y
		}
	}
	if marks.Len() > 0 {
		c.d.path(&marks, `fill="`+alarm+`"`, "")
	}
}
