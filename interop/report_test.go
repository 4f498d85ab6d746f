//go:build interop

package interop

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The outcomes of a case.
const (
	ok     = "ok"
	failed = "FAILED"
	absent = "–" // this PyTorch has no such thing
)

func outcome(bad bool) string {
	if bad {
		return failed
	}
	return ok
}

// report is the table of all cases and all PyTorchs.
type report struct{ columns []*column }

// column has the outcomes of the cases with one PyTorch. A case that was not run has no
// entry.
type column struct {
	about    about
	outcomes map[string]string
}

func (r *report) add(a about) *column {
	c := &column{about: a, outcomes: map[string]string{}}
	r.columns = append(r.columns, c)
	return c
}

func (c *column) set(name, outcome string) { c.outcomes[name] = outcome }

// count returns how many cases came out so.
func (c *column) count(outcome string) int {
	n := 0
	for _, o := range c.outcomes {
		if o == outcome {
			n++
		}
	}
	return n
}

func (r *report) String() string {
	var b strings.Builder
	wide := 0
	for _, c := range cases() {
		wide = max(wide, utf8.RuneCountInString(c.name))
	}
	row := func(first string, cell func(c *column) string) {
		fmt.Fprintf(&b, "%-*s", wide, first)
		for _, c := range r.columns {
			fmt.Fprintf(&b, "  %-14s", cell(c))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	row("PyTorch", func(c *column) string { return c.about.Torch })
	row("safetensors", func(c *column) string { return c.about.Safetensors })
	for _, tc := range cases() {
		if r.ran(tc.name) {
			row(tc.name, func(c *column) string { return c.outcomes[tc.name] })
		}
	}
	row("", func(c *column) string { return fmt.Sprintf("%d ok, %d failed", c.count(ok), c.count(failed)) })
	return b.String()
}

// ran reports whether a case was tried, which one that -run leaves out was not.
func (r *report) ran(name string) bool {
	for _, c := range r.columns {
		if c.outcomes[name] != "" {
			return true
		}
	}
	return false
}
