package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// rows is a table for people. Columns whose heading begins with ">" are
// aligned to the right.
type rows struct {
	right []bool
	cells [][]string
}

func newRows(headings ...string) *rows {
	r := &rows{right: make([]bool, len(headings))}
	for i, h := range headings {
		headings[i], r.right[i] = strings.CutPrefix(h, ">")
	}
	r.cells = append(r.cells, headings)
	return r
}

// add adds a row with a cell for each heading. An empty cell is shown as a dash.
func (r *rows) add(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	r.cells = append(r.cells, cells)
}

// print writes the table, every line after indent.
func (r *rows) print(w io.Writer, indent string) {
	r.pad()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range r.cells {
		fmt.Fprintln(t, indent+strings.Join(row, "\t"))
	}
	t.Flush()
}

// pad fills up the cells of right-aligned columns.
func (r *rows) pad() {
	for col, right := range r.right {
		if !right {
			continue
		}
		width := 0
		for _, row := range r.cells {
			width = max(width, utf8.RuneCountInString(row[col]))
		}
		for _, row := range r.cells {
			row[col] = strings.Repeat(" ", width-utf8.RuneCountInString(row[col])) + row[col]
		}
	}
}
