package convert

import (
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// pattern is a glob that remembers whether it ever matched.
type pattern struct {
	text  string
	match func(name string) bool
	used  bool
}

func (p *pattern) matches(name string) bool {
	ok := p.match(name)
	p.used = p.used || ok
	return ok
}

// selectEntries returns the entries that the patterns leave.
func selectEntries(md *meta.Metadata, include, exclude []string) ([]*meta.Entry, error) {
	f, err := inspect.NewFilter(include, exclude)
	if err != nil {
		return nil, err
	}
	var out []*meta.Entry
	for i := range md.Entries {
		if e := &md.Entries[i]; f.Keep(e.FQN) {
			out = append(out, e)
		}
	}
	if err := md.CheckWhole(f.Keep); err != nil {
		return nil, err
	}
	if err := f.Check(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, ErrEmpty
	}
	return out, nil
}

// allUsed refuses patterns that match nothing: most likely they are mistyped.
func allUsed(ps []*pattern) error {
	for _, p := range ps {
		if !p.used {
			return fmt.Errorf("%w: a name like %q", plan.ErrMissing, p.text)
		}
	}
	return nil
}

// rule is a value for the names that match.
type rule[T any] struct {
	pattern
	value T
}

// parseRule reads "GLOB=VALUE", or just "VALUE", for which it returns a rule
// without a pattern. The last equals sign counts: values have none.
func parseRule[T any](text string, parse func(string) (T, error)) (*rule[T], error) {
	glob, val, ok := cutLast(text, "=")
	if !ok {
		val = text
	}
	v, err := parse(strings.TrimSpace(val))
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrOption, text, err)
	}
	r := &rule[T]{pattern: pattern{text: glob}, value: v}
	if ok {
		if r.match, err = inspect.Glob(glob); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// cutLast cuts s around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+len(sep):], true
}
