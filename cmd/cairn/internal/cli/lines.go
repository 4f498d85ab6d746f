package cli

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/run"
)

// drawnRow is a checkpoint in the drawing of the lines of a run.
type drawnRow struct {
	lane int
	from int // the lane from which this one forks; -1: it does not
}

// drawLines returns a column that shows the lines of a run, a text for each checkpoint. The
// current line is on the left. It returns nil if the run has only one line.
func drawLines(all []run.Logged) []string {
	if !slices.ContainsFunc(all, func(c run.Logged) bool { return c.Left }) {
		return nil
	}
	rows, last := layLanes(all)
	out := make([]string, len(all))
	for i := range all {
		out[i] = rows[i].draw(i, &all[i], rows, last)
	}
	return out
}

// layLanes gives each checkpoint a lane: 0 for the current line, and one for each line that
// was left. last has the number of the last row of each lane.
func layLanes(all []run.Logged) (rows []drawnRow, last map[int]int) {
	rows, last = make([]drawnRow, len(all)), map[int]int{}
	laneOf, tip := map[string]int{}, map[int]string{} // by the identity of a save, and back
	before := ""
	for i := range all {
		c := &all[i]
		id, parent := cmp.Or(c.SaveID, c.Name), c.Parent
		if c.Commit == 0 { // it does not record a parent
			parent = before
		}
		lane, from := 0, -1
		if c.Left {
			from = laneOf[parent]
			if lane = from; lane == 0 || tip[lane] != parent {
				lane = len(tip) + 1
			} else {
				from = -1
			}
			tip[lane] = id
		}
		rows[i], laneOf[id], last[lane], before = drawnRow{lane, from}, lane, i, id
	}
	return rows, last
}

// draw returns the text of the row i.
func (r drawnRow) draw(i int, c *run.Logged, rows []drawnRow, last map[int]int) string {
	first := func(lane int) int { return slices.IndexFunc(rows, func(r drawnRow) bool { return r.lane == lane }) }
	var b strings.Builder
	for lane := 0; lane <= r.lane || hasLaneAfter(rows, last, i, lane); lane++ {
		inside := first(lane) >= 0 && first(lane) < i && last[lane] > i
		forks := r.from >= 0 && lane >= r.from && lane < r.lane
		switch {
		case lane == r.lane && c.Head:
			b.WriteString("●")
		case lane == r.lane && c.Left:
			b.WriteString("○")
		case lane == r.lane:
			b.WriteString("•")
		case forks && lane == r.from && inside:
			b.WriteString("├")
		case forks && lane == r.from:
			b.WriteString("└")
		case forks && inside:
			b.WriteString("┼")
		case forks:
			b.WriteString("─")
		case inside:
			b.WriteString("│")
		default:
			b.WriteString(" ")
		}
		if forks {
			b.WriteString("─")
		} else {
			b.WriteString(" ")
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// hasLaneAfter reports whether a lane at or after lane passes the row i.
func hasLaneAfter(rows []drawnRow, last map[int]int, i, lane int) bool {
	for l, end := range last {
		if l >= lane && end > i && slices.IndexFunc(rows, func(r drawnRow) bool { return r.lane == l }) < i {
			return true
		}
	}
	return false
}
