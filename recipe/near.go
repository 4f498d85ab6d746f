package recipe

import (
	"cmp"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/alike"
	"github.com/cairn-ckpt/cairn/meta"
)

const (
	// maxNamed bounds the groups of names in an error, and maxNear the patterns or names
	// that are like each of them.
	maxNamed = 3
	maxNear  = 3
	// maxWords is the number of names that differ in a number within a word, such as w1 and
	// w2, from which on they are one group.
	maxWords = 4
	// maxSpans bounds the ranges of numbers in the name of a group.
	maxSpans = 4
	// maxAlike bounds the characters of texts that are compared, and maxLikeness the pairs
	// of characters for one error.
	maxAlike    = 256
	maxLikeness = 1 << 28
)

// unused returns an error if the source has names that no rule uses or drops.
func (b *binder) unused() error {
	var left []*meta.Entry
	for i := range b.md.Entries {
		if _, used := b.used[b.md.Entries[i].FQN]; !used {
			left = append(left, &b.md.Entries[i])
		}
	}
	if len(left) == 0 {
		return nil
	}
	var parts []string
	more := len(left)
	advice := "check the variables (--set) and config.json"
	for _, g := range groupNames(left) {
		if len(parts) == maxNamed {
			break
		}
		about := b.matching(g.first)
		if about == "" {
			about = "the nearest patterns: " + strings.Join(b.nearPatterns(g.first), ", ")
			advice = "add a rule, or a [[drop]] with a reason"
		}
		if g.n > 1 {
			about = g.count() + "; " + about
		}
		parts = append(parts, fmt.Sprintf("%q (%s)", g.String(), about))
		more -= g.n
	}
	text := strings.Join(parts, "; ")
	if more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return fmt.Errorf("%w: no rule uses %s; %s", ErrIncomplete, text, advice)
}

// matching says which pattern matches a name although its rule did not use the name. It is
// empty if none does.
func (b *binder) matching(name string) string {
	lists := b.lists()
	for p, r := range b.patterns() {
		if !p.regexp(lists).MatchString(name) {
			continue
		}
		text := fmt.Sprintf("it matches %s in line %d", p.text, r.line)
		if ranges := b.ranges(p); ranges != "" {
			text += ", but " + ranges
		}
		if r.when != nil {
			text += ", if " + r.when.text
		}
		return text
	}
	return ""
}

// nearPatterns returns the patterns that are most like a name.
func (b *binder) nearPatterns(name string) []string {
	var all []candidate
	for p := range b.patterns() {
		all = append(all, candidate{shown: p.text, text: p.text, shape: p.shape()})
	}
	return nearest(name, nameShape(name), all)
}

// patterns are the patterns of the source's side, with their rules.
func (b *binder) patterns() iter.Seq2[*pattern, *rule] {
	return func(yield func(*pattern, *rule) bool) {
		for _, r := range b.rules {
			for _, t := range r.sides[b.src] {
				for _, p := range t.names {
					if !yield(p, r) {
						return
					}
				}
			}
		}
	}
}

// missing returns the error for a name, or one of several, that a rule needs and the source
// does not have. The name was made of the pattern p.
func (b *binder) missing(p *pattern, names ...string) error {
	quoted := make([]string, len(names))
	for i := range names {
		quoted[i] = strconv.Quote(names[i])
	}
	text := strings.Join(quoted, " or ")
	if ranges := b.ranges(p); ranges != "" {
		text += " (" + ranges + ")"
	}
	return fmt.Errorf("%w: the checkpoint has no %s; %s", ErrIncomplete, text, b.similar(names[0], nameShape(names[0])))
}

// ranges says which values the captures of a pattern have, and why. It is empty if the
// pattern has no captures.
func (b *binder) ranges(p *pattern) string {
	var out []string
	for _, c := range p.captures() {
		n, known := b.counts[c]
		d := b.r.captures[c]
		if !known || n == 0 || d != nil && d.list != nil {
			continue
		}
		why := "the names"
		if d != nil {
			if v, err := d.count.run(b.env); err == nil && v != nil {
				why = d.count.text
			}
		}
		upTo := fmt.Sprintf("0 to %d", n-1)
		if n == 1 {
			upTo = "only 0"
		}
		out = append(out, fmt.Sprintf("{%s} is %s, from %s", c, upTo, why))
	}
	return strings.Join(out, "; ")
}

// similar names the names of the source that are most like a text.
func (b *binder) similar(text, shape string) string {
	entries := make([]*meta.Entry, len(b.md.Entries))
	for i := range entries {
		entries[i] = &b.md.Entries[i]
	}
	expected := map[string]bool{} // a name that no rule expects is more likely to be meant
	for p := range b.patterns() {
		expected[p.shape()] = true
	}
	var all []candidate
	for _, g := range groupNames(entries) {
		shown := strconv.Quote(g.String())
		if g.n > 1 {
			shown += " (" + g.count() + ")"
		}
		all = append(all, candidate{shown, g.first, nameShape(g.first), expected[nameShape(g.first)]})
	}
	if len(all) == 0 {
		return "it has no names"
	}
	return "its nearest names: " + strings.Join(nearest(text, shape, all), ", ")
}

// nameGroup is a set of names that differ only in numbers.
type nameGroup struct {
	first   string
	n       int
	tensors int
	// literals are the texts around the numbers, and values the numbers, ascending.
	literals []string
	values   [][]int
}

// count returns how many names there are.
func (g *nameGroup) count() string {
	if g.tensors == g.n {
		return fmt.Sprintf("%d tensors", g.n)
	}
	return fmt.Sprintf("%d names", g.n)
}

// String returns the name with all its numbers, such as layers.{0..4,6..31}.weight.
func (g *nameGroup) String() string {
	var b strings.Builder
	for i, values := range g.values {
		b.WriteString(g.literals[i])
		if text := spans(values); len(values) == 1 {
			b.WriteString(text)
		} else {
			b.WriteString("{" + text + "}")
		}
	}
	b.WriteString(g.literals[len(g.values)])
	return b.String()
}

// Group returns one element for all names that differ only in numbers and have the same
// reason. Its name is such as "layers.{0..31}._extra_state (32 names)".
func Group[T Dropped | Inexact](list []T) []T {
	var reasons []string
	of := map[string][]*meta.Entry{}
	for _, x := range list {
		d := Dropped(x)
		if of[d.Reason] == nil {
			reasons = append(reasons, d.Reason)
		}
		of[d.Reason] = append(of[d.Reason], &meta.Entry{FQN: d.Name})
	}
	var out []T
	for _, reason := range reasons {
		for _, g := range groupNames(of[reason]) {
			name := g.String()
			if g.n > 1 {
				name += " (" + g.count() + ")"
			}
			out = append(out, T(Dropped{Name: name, Reason: reason}))
		}
	}
	return out
}

// spans returns ascending numbers as ranges.
func spans(values []int) string {
	var out []string
	for i := 0; i < len(values); {
		k := i
		for k+1 < len(values) && values[k+1] == values[k]+1 {
			k++
		}
		text := strconv.Itoa(values[i])
		if k > i {
			text += ".." + strconv.Itoa(values[k])
		}
		if len(out) == maxSpans {
			return strings.Join(out, ",") + ",…," + strconv.Itoa(values[len(values)-1])
		}
		out = append(out, text)
		i = k + 1
	}
	return strings.Join(out, ",")
}

// plainNumber is a number that has only one way to be written.
var plainNumber = regexp.MustCompile(`\A(0|[1-9][0-9]{0,8})\z`)

// cutNumbers returns the texts around the numbers of a name, and the numbers. Numbers
// within a word, such as w1, only count if words is true.
func cutNumbers(name string, words bool) (literals []string, values []int) {
	at := 0
	for _, m := range numbers.FindAllStringIndex(name, -1) {
		step := (m[0] == 0 || name[m[0]-1] == '.') && (m[1] == len(name) || name[m[1]] == '.')
		if !step && !words || !plainNumber.MatchString(name[m[0]:m[1]]) {
			continue
		}
		n, _ := strconv.Atoi(name[m[0]:m[1]])
		literals, values = append(literals, name[at:m[0]]), append(values, n)
		at = m[1]
	}
	return append(literals, name[at:]), values
}

// groupNames groups names that differ only in numbers, in the order of their first names.
func groupNames(entries []*meta.Entry) []*nameGroup {
	key := func(name string, words bool) string {
		literals, _ := cutNumbers(name, words)
		return strings.Join(literals, "\x00")
	}
	narrow := map[string]map[string]bool{} // the groups without numbers in words, by the others
	for _, e := range entries {
		wide := key(e.FQN, true)
		if narrow[wide] == nil {
			narrow[wide] = map[string]bool{}
		}
		narrow[wide][key(e.FQN, false)] = true
	}
	var out []*nameGroup
	index := map[string]*nameGroup{}
	for _, e := range entries {
		wide := key(e.FQN, true)
		words := len(narrow[wide]) > maxWords
		literals, values := cutNumbers(e.FQN, words)
		k := strings.Join(literals, "\x00")
		g := index[k]
		if g == nil {
			g = &nameGroup{first: e.FQN, literals: literals, values: make([][]int, len(values))}
			index[k] = g
			out = append(out, g)
		}
		g.n++
		if e.Tensor != nil {
			g.tensors++
		}
		for i, v := range values {
			g.values[i] = append(g.values[i], v)
		}
	}
	for _, g := range out {
		for i := range g.values {
			slices.Sort(g.values[i])
			g.values[i] = slices.Compact(g.values[i])
		}
	}
	return out
}

// candidate is a text that may be like another one.
type candidate struct {
	shown string // in the error
	text  string
	shape string // with {} for each number
	// expected means that the text has another meaning, so that it counts as twice as far.
	expected bool
}

// nearest returns the texts that are most like a text of that shape, the nearest first.
// Numbers count only among texts of equal shape.
func nearest(text, shape string, all []candidate) []string {
	type near struct {
		shown     string
		far, text int
	}
	cut := func(s string) string { return s[:min(len(s), maxAlike)] }
	var found []near
	work := 0
	for _, c := range all {
		work += len(cut(shape))*len(cut(c.shape)) + len(cut(text))*len(cut(c.text))
		if work > maxLikeness {
			break
		}
		if slices.ContainsFunc(found, func(n near) bool { return n.shown == c.shown }) {
			continue
		}
		n := near{c.shown, 2 * alike.Distance(cut(shape), cut(c.shape)), 0}
		if !c.expected {
			n.far /= 2
		}
		if len(found) == maxNear && n.far > found[maxNear-1].far {
			continue
		}
		n.text = alike.Distance(cut(text), cut(c.text))
		found = append(found, n)
		slices.SortStableFunc(found, func(x, y near) int { return cmp.Or(cmp.Compare(x.far, y.far), cmp.Compare(x.text, y.text)) })
		found = found[:min(len(found), maxNear)]
	}
	out := make([]string, len(found))
	for i := range found {
		out[i] = found[i].shown
	}
	return out
}
