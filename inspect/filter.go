package inspect

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/plan"
)

// Filter selects names by globs and records which globs matched. It is not safe
// for concurrent use.
type Filter struct {
	all   bool // no glob selects names
	globs []*usedGlob
}

// usedGlob is a glob that records whether it ever matched.
type usedGlob struct {
	text     string
	match    func(name string) bool
	excludes bool
	used     bool
}

// NewFilter returns a filter that keeps the names that match a glob in selected,
// or all names if selected is empty, and that match no glob in excluded. The error
// wraps ErrPattern.
func NewFilter(selected, excluded []string) (*Filter, error) {
	f := &Filter{all: len(selected) == 0}
	for i, p := range slices.Concat(selected, excluded) {
		match, err := Glob(p)
		if err != nil {
			return nil, err
		}
		f.globs = append(f.globs, &usedGlob{text: p, match: match, excludes: i >= len(selected)})
	}
	return f, nil
}

// Keep reports whether the filter keeps a name.
func (f *Filter) Keep(name string) bool {
	in, out := f.all, false
	for _, g := range f.globs { // all of them, to record which ones match
		if g.match(name) {
			g.used = true
			in, out = in || !g.excludes, out || g.excludes
		}
	}
	return in && !out
}

// KeepBelow reports whether the filter may keep prefix, or a name that begins with prefix
// and a dot. If prefix is empty, it is about all names.
func (f *Filter) KeepBelow(prefix string) bool {
	in, out := f.all, false
	for _, g := range f.globs { // all of them, to record which ones match
		if g.excludes && g.covers(prefix) || !g.excludes && g.reaches(prefix) {
			g.used = true
			in, out = in || !g.excludes, out || g.excludes
		}
	}
	return in && !out
}

// literal returns the characters of the glob before the first one that is special.
func (g *usedGlob) literal() string {
	i := strings.IndexAny(g.text, `*?[\`)
	if i < 0 {
		return g.text
	}
	return g.text[:i]
}

// covers reports whether the glob matches all names below prefix.
func (g *usedGlob) covers(prefix string) bool {
	if prefix == "" {
		return g.text == "*"
	}
	if g.literal() == g.text {
		return g.match(prefix)
	}
	return strings.HasSuffix(g.text, "*") && !strings.HasSuffix(g.text, `\*`) && (g.match(prefix) || g.match(prefix+"."))
}

// reaches reports whether the glob may match a name below prefix.
func (g *usedGlob) reaches(prefix string) bool {
	l := g.literal()
	if prefix == "" || l == g.text {
		return prefix == "" || Below(prefix, l) || Below(l, prefix)
	}
	return strings.HasPrefix(l, prefix+".") || strings.HasPrefix(prefix+".", l)
}

// Check returns an error that wraps plan.ErrMissing if a glob matched no name
// that was passed to Keep: it is probably mistyped.
func (f *Filter) Check() error {
	for _, g := range f.globs {
		if !g.used {
			return fmt.Errorf("%w: a name like %q", plan.ErrMissing, g.text)
		}
	}
	return nil
}

// ErrPattern reports a malformed glob.
var ErrPattern = errors.New("malformed pattern")

// Glob returns a function that matches whole names against a pattern: a star
// matches any characters including dots, a question mark matches one character,
// and [ab-d] or [!ab-d] one of a set. A backslash escapes the next character. A
// pattern without any of these matches a name and everything below it, at a dot;
// the empty pattern matches no name. The error wraps ErrPattern.
func Glob(pattern string) (func(name string) bool, error) {
	if pattern != "" && !strings.ContainsAny(pattern, `*?[\`) {
		return func(name string) bool { return Below(name, pattern) }, nil
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for rest := pattern; rest != ""; {
		re, n, err := globStep(rest)
		if err != nil {
			return nil, fmt.Errorf("%w %q: %w", ErrPattern, pattern, err)
		}
		b.WriteString(re)
		rest = rest[n:]
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrPattern, pattern, err)
	}
	return re.MatchString, nil
}

// globStep returns the regular expression of the first element of p, and its
// length in p.
func globStep(p string) (re string, n int, err error) {
	switch p[0] {
	case '*':
		return ".*", 1, nil
	case '?':
		return ".", 1, nil
	case '[':
		return globSet(p)
	case '\\':
		if len(p) == 1 {
			return "", 0, errors.New("it ends with a backslash")
		}
		return regexp.QuoteMeta(p[1:2]), 2, nil
	}
	return regexp.QuoteMeta(p[:1]), 1, nil
}

// globSet is globStep for a set of characters.
func globSet(p string) (re string, n int, err error) {
	end := strings.IndexByte(p, ']')
	if end < 2 {
		return "", 0, errors.New("[ without characters or ]")
	}
	set := p[1:end]
	not := ""
	if rest, ok := strings.CutPrefix(set, "!"); ok {
		not, set = "^", rest
	}
	if set == "" {
		return "", 0, errors.New("[! without characters")
	}
	quote := strings.NewReplacer(`\`, `\\`, `[`, `\[`, `^`, `\^`)
	return "[" + not + quote.Replace(set) + "]", end + 1, nil
}
