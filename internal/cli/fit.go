package cli

import (
	"strings"
	"unicode/utf8"
)

// fewest is how far a column is shortened to make room for others.
const fewest = 20

// fit makes a table at most so wide: it leaves out the prefix, shortens the
// columns that may be, and drops columns at the right where that is not enough.
func (r *rows) fit(width int) {
	if r.prefix != "" && r.excess(width) > 0 {
		r.leaveOutPrefix()
	}
	give := r.give
	if len(give) == 0 {
		give = []int{len(r.right) - 1}
	}
	for _, col := range give {
		if over := r.excess(width); over > 0 {
			r.shorten(col, max(r.column(col)-over, fewest))
		}
	}
	for len(r.right) > 2 && r.excess(width) > 0 {
		r.drop()
	}
}

func (r *rows) leaveOutPrefix() {
	for _, row := range r.cells {
		if rest, ok := strings.CutPrefix(row[r.of], r.prefix); ok {
			row[r.of] = "…" + rest
		}
	}
}

// shorten cuts the cells of a column: the last one at their end, others in the
// middle, since names differ at both ends.
func (r *rows) shorten(col, width int) {
	for _, row := range r.cells {
		if col == len(r.right)-1 {
			row[col] = shorten(row[col], width)
		} else {
			row[col] = shortenMiddle(row[col], width)
		}
	}
}

// drop removes the last column.
func (r *rows) drop() {
	last := len(r.right) - 1
	r.right = r.right[:last]
	for i := range r.cells {
		r.cells[i] = r.cells[i][:last]
	}
}

// shorten cuts text that is longer than n characters.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return strings.TrimRight(string(r[:n-1]), " ") + "…"
	}
	return s
}

// shortenMiddle cuts text that is longer than n characters in its middle.
func shortenMiddle(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	head := (n - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
}
