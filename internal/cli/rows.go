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
	// give are the columns that are shortened where a table is too wide, in
	// this order. None: the last one.
	give []slack
	// spare is a column that is dropped where a table is too wide. Zero: none.
	spare int
	// prefix is what the cells of column of begin with, over and over. It is
	// left out where the table is too wide.
	prefix string
	of     int
}

func newRows(headings ...string) *rows {
	r := &rows{right: make([]bool, len(headings))}
	for i, h := range headings {
		headings[i], r.right[i] = strings.CutPrefix(h, ">")
	}
	r.cells = append(r.cells, headings)
	return r
}

// newPlainRows returns a table without headings.
func newPlainRows(columns int) *rows { return &rows{right: make([]bool, columns)} }

// add adds a row with a cell for each heading. An empty cell is shown as a dash.
func (r *rows) add(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	r.cells = append(r.cells, cells)
}

// table prints a table as wide as the terminal at most.
func (o *output) table(r *rows) { r.print(o.out, "", o.width) }

// print writes the table, every line after indent. A width of zero is no limit.
func (r *rows) print(w io.Writer, indent string, width int) {
	if width > 0 {
		r.fit(width - utf8.RuneCountInString(indent))
	}
	r.pad()
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, row := range r.cells {
		fmt.Fprintln(t, indent+strings.Join(row, "\t"))
	}
	t.Flush() // w remembers its error
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

// pad fills up the cells of right-aligned columns.
func (r *rows) pad() {
	for col, right := range r.right {
		if !right {
			continue
		}
		width := r.column(col)
		for _, row := range r.cells {
			row[col] = strings.Repeat(" ", width-utf8.RuneCountInString(row[col])) + row[col]
		}
	}
}
