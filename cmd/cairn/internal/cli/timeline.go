package cli

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// timelineOf is the output of 'cairn inspect --timeline PATH --json'.
type timelineOf struct {
	Path string `json:"path"`
	*inspect.Timeline
}

// inspectTimeline shows the timeline of a checkpoint and writes its trace, if that is
// wanted.
func inspectTimeline(cmd *cobra.Command, path string, f inspectFlags) error {
	c, err := openCheckpoint(cmd.Context(), path)
	if err != nil {
		return err
	}
	defer c.Close()
	t, err := inspect.NewTimeline(c.Info())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	o := outputOf(cmd)
	if f.trace == "-" {
		return t.WriteTrace(o.out)
	}
	if f.trace != "" {
		err := writeOutput(cmd.Context(), c, path, f.trace, func(w io.Writer) error { return t.WriteTrace(w) })
		if err != nil {
			return err
		}
	}
	v := timelineOf{path, t}
	return o.result(v, func() {
		if f.timeline {
			printTimeline(o, &v)
		}
		if f.trace != "" {
			o.remark("%s holds the trace of %s; open it with Perfetto (https://ui.perfetto.dev)\n", clean(f.trace), plural(len(t.Ranks), "rank"))
		}
	})
}

const (
	// chartWidth is the width of a chart that does not go to a terminal, and leastBar
	// the smallest width of its bars.
	chartWidth, leastBar = 100, 10
	// mostBars is the most ranks that a chart shows.
	mostBars = 24
	// slowMark stands behind slow ranks.
	slowMark = "slow"
)

func printTimeline(o *output, v *timelineOf) {
	t := newPlainRows(2)
	t.add("save", clean(v.SaveID))
	t.add("step", formatStep(v.Step))
	t.add("ranks", strconv.Itoa(len(v.Ranks)))
	t.add("seconds", formatSeconds(v.Seconds))
	o.table(t)
	o.printf("\n")
	shown := v.Typical(mostBars)
	newChart(o, v, shown).print(o, shown)
	if n := len(v.Ranks) - len(shown); n > 0 {
		o.remark("… the slowest ranks and those around the median; %s in --json\n", plural(n, "more rank"))
	}
	o.printf("\n")
	p := newRows("PHASE", ">RANKS", ">MEDIAN", ">SLOWEST", ">RANK", ">SIZE", ">RATE")
	for _, x := range v.Phases {
		size, rate := "", ""
		if x.Bytes > 0 {
			size = formatBytes(x.Bytes)
		}
		if x.Bytes > 0 && x.Slowest > 0 {
			rate = formatRate(float64(x.Bytes) / x.Slowest)
		}
		p.add(string(letter(x.Name))+" "+x.Name, strconv.Itoa(x.Ranks), formatSeconds(x.Median), formatSeconds(x.Slowest),
			strconv.Itoa(x.SlowestRank), size, rate)
	}
	o.table(p)
}

// chart draws the phases of ranks as bars.
type chart struct {
	seconds float64 // the length of a bar
	cells   int
	rank    int // width of the ranks' numbers
	heading string
	tails   []string // the texts behind the bars
}

// newChart lays out a chart of the shown ranks.
func newChart(o *output, v *timelineOf, shown []inspect.RankTimeline) *chart {
	c := &chart{seconds: v.Seconds, rank: len("RANK")}
	t := newRows(">BUSY", ">WRITTEN", ">RATE", "")
	for _, r := range shown {
		c.rank = max(c.rank, len(strconv.Itoa(r.Rank)))
		written, rate := "", ""
		if i := slices.IndexFunc(r.Phases, func(p inspect.RankPhase) bool { return p.Name == meta.PhaseWrite }); i >= 0 {
			p := r.Phases[i]
			written = formatBytes(p.Bytes)
			if p.End > p.Start {
				rate = formatRate(float64(p.Bytes) / (p.End - p.Start))
			}
		}

		slow := " "
		if r.Slow {
			slow = slowMark
		}
		t.add(formatSeconds(r.Busy), written, rate, slow)
	}

	var text strings.Builder
	t.print(&text, "", 0)
	c.tails = strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")

	tail := len(slowMark)
	for _, line := range c.tails {
		tail = max(tail, utf8.RuneCountInString(line))
	}
	c.heading, c.tails = c.tails[0], c.tails[1:]

	width := o.width
	if width <= 0 {
		width = chartWidth
	}
	c.cells = max(leastBar, width-c.rank-2*gap-tail)
	return c
}

func (c *chart) print(o *output, shown []inspect.RankTimeline) {
	end := formatSeconds(c.seconds)
	axis := "0" + strings.Repeat(" ", max(1, c.cells-1-utf8.RuneCountInString(end))) + end
	o.printf("%*s  %s  %s\n", c.rank, "RANK", axis, c.heading)
	for i, r := range shown {
		tail := c.tails[i]
		if r.Slow {
			tail = strings.TrimSuffix(tail, slowMark) + paint(o.color, "31", slowMark)
		}
		o.printf("%*d  %s  %s\n", c.rank, r.Rank, c.bar(o, r.Phases), tail)
	}
}

// waiting is drawn between the phases of a rank.
const waiting = '·'

// bar draws the phases of one rank. If phases overlap, it shows the one that began last.
func (c *chart) bar(o *output, phases []inspect.RankPhase) string {
	cells := make([]string, c.cells) // names of phases; empty: no phase
	last := 0
	for _, p := range phases {
		from := min(c.cell(p.Start), c.cells-1)
		to := max(from+1, c.cell(p.End))
		for i := from; i < to; i++ {
			cells[i] = p.Name
		}
		last = max(last, to)
	}
	var out strings.Builder
	for i := 0; i < len(cells); {
		n := i + 1
		for n < len(cells) && cells[n] == cells[i] && (n < last) == (i < last) {
			n++
		}
		switch {
		case cells[i] != "":
			out.WriteString(paint(o.color, phaseColor(cells[i]), strings.Repeat(string(letter(cells[i])), n-i)))
		case i < last:
			out.WriteString(strings.Repeat(string(waiting), n-i))
		default:
			out.WriteString(strings.Repeat(" ", n-i))
		}
		i = n
	}
	return out.String()
}

// cell returns the number of the cell at which a time lies.
func (c *chart) cell(seconds float64) int {
	if c.seconds <= 0 {
		return 0
	}
	return min(c.cells, int(math.Round(seconds/c.seconds*float64(c.cells))))
}

// letter stands for a phase in a chart.
func letter(phase string) byte { return phase[0] }

// phaseColor returns the colour of a phase for text, and reversed for cells.
func phaseColor(phase string) string {
	switch phase {
	case meta.PhaseStage:
		return "7;36"
	case meta.PhasePlan, meta.PhaseGlobalPlan:
		return "7;33"
	case meta.PhaseWrite:
		return "7;32"
	case meta.PhaseCommit:
		return "7;35"
	}
	return "7;34"
}
