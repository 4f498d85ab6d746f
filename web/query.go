package web

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
)

// query reads the parameters of a question. The first error counts.
type query struct {
	values url.Values
	err    error
}

// newQuery returns the parameters of a question that may have those in allowed, each once.
func newQuery(values url.Values, allowed ...string) *query {
	q := &query{values: values}
	for _, name := range sortedKeys(values) {
		switch {
		case !slices.Contains(allowed, name):
			q.failf("there is no parameter %s", quote(name))
		case len(values[name]) > 1:
			q.failf("the parameter %s is there %d times", quote(name), len(values[name]))
		}
	}
	return q
}

func sortedKeys(v url.Values) []string {
	var out []string
	for name := range v {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (q *query) failf(format string, args ...any) {
	if q.err == nil {
		q.err = badRequest(fmt.Sprintf(format, args...), "docs/web.md describes the requests")
	}
}

// text returns a parameter, or "".
func (q *query) text(name string) string { return q.values.Get(name) }

// need returns a parameter that must be there.
func (q *query) need(name string) string {
	if !q.values.Has(name) {
		q.failf("the parameter %q is missing", name)
	}
	return q.values.Get(name)
}

// count returns a number between low and high, or def.
func (q *query) count(name string, def, low, high int) int {
	text := q.text(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		q.failf("%s=%s: want a number between %d and %d", name, quote(text), low, high)
	}
	return n
}

// span returns the two numbers of LO:HI, or zeros.
func (q *query) span(name string) [2]int64 {
	text := q.text(name)
	if text == "" {
		return [2]int64{}
	}
	a, b, _ := strings.Cut(text, ":")
	lo, err := strconv.ParseInt(a, 10, 64)
	hi, err2 := strconv.ParseInt(b, 10, 64)
	if err != nil || err2 != nil || lo < 0 || hi <= lo {
		q.failf("%s=%s: want LO:HI, with LO less than HI", name, quote(text))
	}
	return [2]int64{lo, hi}
}

// choice returns one of the choices, of which the first is the default.
func (q *query) choice(name string, choices ...string) string {
	text := q.text(name)
	if text == "" {
		return choices[0]
	}
	if !slices.Contains(choices, text) {
		q.failf("%s=%s: want one of %s", name, quote(text), strings.Join(choices, ", "))
	}
	return text
}

// flag returns whether a parameter is 1.
func (q *query) flag(name string) bool { return q.choice(name, "0", "1") == "1" }

// of returns the names that the question is about: the weights, unless a pattern selects names.
func (q *query) of() inspect.Choice {
	choices := []string{string(inspect.OnlyWeights), string(inspect.OnlyOptimizer), string(inspect.AllRoles)}
	if q.text("select") != "" {
		slices.Reverse(choices)
	}
	return inspect.Choice(q.choice("of", choices...))
}

// maxPattern bounds the length of a pattern.
const maxPattern = 4096

// pattern returns a function that selects names by a pattern, or nil if there is none. It is
// safe for concurrent use.
func (q *query) pattern(name string) func(fqn string) bool {
	text := q.text(name)
	if text == "" {
		return nil
	}
	if len(text) > maxPattern {
		q.failf("%s has %d characters: want at most %d", name, len(text), maxPattern)
		return nil
	}
	match, err := inspect.Glob(text)
	if err != nil && q.err == nil {
		q.err = &Error{Kind: KindBadRequest, Hint: "'cairn help patterns' explains patterns", Err: err}
	}
	return match
}

// The bounds of histograms.
const (
	defaultBuckets = 100
	maxBuckets     = 4096
)

// histogram returns the options of a histogram.
func (q *query) histogram() inspect.StatsOptions {
	return inspect.StatsOptions{
		Buckets: q.count("buckets", defaultBuckets, 1, maxBuckets),
		Log2:    q.choice("scale", "linear", "log2") == "log2",
	}
}
