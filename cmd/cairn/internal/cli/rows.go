package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// rows is a table for people. Columns whose heading begins with ">" are
// aligned to the right. Every cell is printed in full: a table that is too wide for
// the terminal takes more lines.
type rows struct {
	right []bool
	cells [][]string
	plain bool // without headings
}

func newRows(headings ...string) *rows {
	r := &rows{right: make([]bool, len(headings))}
	for i, h := range headings {
		headings[i], r.right[i] = strings.CutPrefix(h, ">")
	}
	r.cells = append(r.cells, headings)
	return r
}

// newPlainRows returns a table without headings, which is printed as it is at
// any width.
func newPlainRows(columns int) *rows { return &rows{right: make([]bool, columns), plain: true} }

// add adds a row with a cell for each heading. An empty cell is shown as a dash.
func (r *rows) add(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	r.cells = append(r.cells, cells)
}

// table prints a table for the width of the terminal.
func (o *output) table(r *rows) { r.print(o.out, "", o.width) }

// leastFirst is the width below which the first column does not share its lines
// with the other columns.
const leastFirst = 12

// print writes the table, every line after indent. A width of zero is no limit.
// If the table is wider than width, cells of the first column that are too long
// get a line of their own. If the other columns are too wide even so, each row
// becomes a record.
func (r *rows) print(w io.Writer, indent string, width int) {
	width -= utf8.RuneCountInString(indent)
	over := r.excess(width)
	switch first := r.column(0) - over; {
	case r.plain || width <= 0 || over <= 0:
		r.lines(w, indent, r.column(0))
	case first >= leastFirst && !r.right[0]:
		r.lines(w, indent, first)
	default:
		r.records(w, indent, width)
	}
}

// lines writes a line for each row. A cell of the first column that is wider than
// first is on a line of its own, above the others.
func (r *rows) lines(w io.Writer, indent string, first int) {
	widths := make([]int, len(r.right))
	for col := range widths {
		widths[col] = r.column(col)
	}
	widths[0] = first
	for _, row := range r.cells {
		if utf8.RuneCountInString(row[0]) > first {
			fmt.Fprintf(w, "%s%s\n", indent, row[0])
			row = append([]string{""}, row[1:]...)
		}
		line := indent
		for col, cell := range row {
			space := strings.Repeat(" ", widths[col]-utf8.RuneCountInString(cell))
			switch {
			case r.right[col]:
				line += space + cell
			case col < len(row)-1:
				line += cell + space
			default:
				line += cell
			}
			if col < len(row)-1 {
				line += strings.Repeat(" ", gap)
			}
		}
		fmt.Fprintln(w, line)
	}
}

// records writes each row as its first cell and, indented below it, the other
// cells with their headings, as many on a line as fit. Dashes are left out.
func (r *rows) records(w io.Writer, indent string, width int) {
	headings := r.cells[0]
	for _, row := range r.cells[1:] {
		first := row[0]
		if r.right[0] {
			first = headings[0] + " " + first
		}
		fmt.Fprintf(w, "%s%s\n", indent, first)
		inner := indent + strings.Repeat(" ", len(first)-len(strings.TrimLeft(first, " "))+4)
		line := ""
		for col, cell := range row[1:] {
			if cell == "-" {
				continue
			}
			field := headings[col+1] + " " + cell
			if line != "" && utf8.RuneCountInString(inner+line+field)+gap > width {
				fmt.Fprintf(w, "%s%s\n", inner, line)
				line = ""
			}
			if line != "" {
				line += strings.Repeat(" ", gap)
			}
			line += field
		}
		if line != "" {
			fmt.Fprintf(w, "%s%s\n", inner, line)
		}
	}
}

// gap is what lies between two columns.
const gap = 2

// column returns the width of a column.
func (r *rows) column(col int) int {
	width := 0
	for _, row := range r.cells {
		width = max(width, utf8.RuneCountInString(row[col]))
	}
	return width
}

// excess returns by how much the table is wider than width.
func (r *rows) excess(width int) int {
	total := gap * (len(r.right) - 1)
	for col := range r.right {
		total += r.column(col)
	}
	return total - width
}

// shorten cuts a value that is longer than n characters. Names are never cut.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return strings.TrimRight(string(r[:n-1]), " ") + "…"
	}
	return s
}
