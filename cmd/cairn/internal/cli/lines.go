package cli

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/run"
)

// lane is a column in the drawing of the lines of a run, with the numbers of rows.
type lane struct {
	from        int // the parent of the first checkpoint, in another lane; -1: it is not there
	first, last int // the checkpoints of the lane
}

// drawLines returns a column that shows the lines of a run, a text for each checkpoint. The
// current line is on the left. It returns nil if the run has only one line.
func drawLines(all []run.Logged) []string {
	if !slices.ContainsFunc(all, func(c run.Logged) bool { return c.Left }) {
		return nil
	}
	lanes, of := layLanes(all)
	out := make([]string, len(all))
	for i := range all {
		out[i] = drawRow(lanes, i, of[i], node(&all[i]))
	}
	return out
}

// layLanes returns the lanes, and the number of the lane of each checkpoint: 0 for the current
// line, and one for each line that was left.
func layLanes(all []run.Logged) (lanes []lane, of []int) {
	lanes, of = []lane{{-1, -1, -1}}, make([]int, len(all))
	rows := map[string]int{} // by the identity of a save
	before := ""
	for i := range all {
		c := &all[i]
		id, parent := cmp.Or(c.SaveID, c.Name), c.Parent
		if c.Commit == 0 { // it does not record a parent
			parent = before
		}
		if c.Left {
			from, ok := rows[parent]
			if !ok {
				from = -1
			}
			if of[i] = len(lanes); ok && of[from] > 0 && lanes[of[from]].last == from {
				of[i] = of[from]
			} else {
				lanes = append(lanes, lane{from, i, i})
			}
		}
		if l := &lanes[of[i]]; l.first < 0 {
			l.first = i
		}
		lanes[of[i]].last = i
		rows[id], before = i, id
	}
	return lanes, of
}

// node returns the sign of a checkpoint.
func node(c *run.Logged) string {
	switch {
	case c.Head:
		return "●"
	case c.Left:
		return "○"
	case !c.Complete():
		return "·"
	}
	return "•"
}

// drawRow returns the text of row i, with a sign in the lane own. Lanes that fork from the
// checkpoint begin beside it.
func drawRow(lanes []lane, i, own int, sign string) string {
	end := 0 // the last lane that begins in this row
	for k, l := range lanes {
		if l.from == i {
			end = k
		}
	}

	var b strings.Builder
	for k, l := range lanes {
		passes := i < l.last && (l.from >= 0 && i > l.from || l.from < 0 && l.first >= 0 && i > l.first)
		joined := k > own && k <= end

		switch {
		case k == own:
			b.WriteString(sign)
		case l.from == i && k == end:
			b.WriteString("╮")
		case l.from == i:
			b.WriteString("┬")
		case joined && passes:
			b.WriteString("┼")
		case joined:
			b.WriteString("─")
		case passes:
			b.WriteString("│")
		default:
			b.WriteString(" ")
		}

		if k >= own && k < end {
			b.WriteString("─")
		} else {
			b.WriteString(" ")
		}
	}
	return strings.TrimRight(b.String(), " ")
}
