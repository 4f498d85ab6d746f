package cli

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// slack is a column that may be shortened, and how far at most.
type slack struct{ col, least int }

// fit makes a table at most so wide. It leaves out the prefix and the spare
// column, drops columns at the right that have no room, and shortens those that
// may be.
func (r *rows) fit(width int) {
	if len(r.give) == 0 {
		r.give = []slack{{len(r.right) - 1, 20}}
	}
	if r.prefix != "" && r.excess(width) > 0 {
		r.leaveOutPrefix()
	}
	if r.spare > 0 && r.excess(width) > 0 {
		r.drop(r.spare)
	}
	for len(r.right) > 2 && r.excess(width) > r.yield() {
		r.drop(len(r.right) - 1)
	}
	for _, s := range r.give {
		if over := r.excess(width); over > 0 {
			r.shorten(s.col, max(r.column(s.col)-over, s.least))
		}
	}
}

// yield returns how much narrower the table becomes if all columns give what
// they may.
func (r *rows) yield() int {
	n := 0
	for _, s := range r.give {
		n += max(0, r.column(s.col)-s.least)
	}
	return n
}

func (r *rows) leaveOutPrefix() {
	for _, row := range r.cells {
		if rest, ok := strings.CutPrefix(row[r.of], r.prefix); ok {
			row[r.of] = "…" + rest
		}
	}
}

// shorten cuts the cells of a column: those of the last one at their end, others
// further ahead.
func (r *rows) shorten(col, width int) {
	for _, row := range r.cells {
		if col == len(r.right)-1 {
			row[col] = shorten(row[col], width)
		} else {
			row[col] = shortenMiddle(row[col], width)
		}
	}
}

// drop removes a column.
func (r *rows) drop(col int) {
	r.right = slices.Delete(r.right, col, col+1)
	for i := range r.cells {
		r.cells[i] = slices.Delete(r.cells[i], col, col+1)
	}
	r.give = slices.DeleteFunc(r.give, func(s slack) bool { return s.col == col })
	for i := range r.give {
		if r.give[i].col > col {
			r.give[i].col--
		}
	}
	if r.of > col {
		r.of--
	}
}

// shorten cuts text that is longer than n characters.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return strings.TrimRight(string(r[:n-1]), " ") + "…"
	}
	return s
}

// shortenMiddle cuts text that is longer than n characters behind its beginning:
// of names the ends tell more.
func shortenMiddle(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	head := (n - 1) / 4
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
}
