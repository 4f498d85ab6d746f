package inspect

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/plan"
)

// Filter selects names by globs, and remembers which of them matched. It is not
// safe for concurrent use.
type Filter struct {
	in, out []*usedGlob
}

// usedGlob is a glob that remembers whether it ever matched.
type usedGlob struct {
	text  string
	match func(name string) bool
	used  bool
}

// NewFilter returns a filter that keeps the names that one of the globs in
// selected matches, or all where there are none, unless one in excluded matches
// too. The error wraps ErrPattern.
func NewFilter(selected, excluded []string) (*Filter, error) {
	in, err := usedGlobs(selected)
	if err != nil {
		return nil, err
	}
	out, err := usedGlobs(excluded)
	if err != nil {
		return nil, err
	}
	return &Filter{in, out}, nil
}

func usedGlobs(patterns []string) ([]*usedGlob, error) {
	var out []*usedGlob
	for _, p := range patterns {
		match, err := Glob(p)
		if err != nil {
			return nil, err
		}
		out = append(out, &usedGlob{text: p, match: match})
	}
	return out, nil
}

// Keep reports whether the filter keeps a name.
func (f *Filter) Keep(name string) bool {
	in := matchAny(f.in, name) || len(f.in) == 0
	return !matchAny(f.out, name) && in
}

// matchAny reports whether one of the globs matches. All are asked, so that each
// knows whether it is of use.
func matchAny(globs []*usedGlob, name string) bool {
	found := false
	for _, g := range globs {
		ok := g.match(name)
		g.used = g.used || ok
		found = found || ok
	}
	return found
}

// Check returns an error that wraps plan.ErrMissing if a glob matched none of the
// names that Keep was asked about: most likely it is mistyped.
func (f *Filter) Check() error {
	for _, globs := range [][]*usedGlob{f.in, f.out} {
		for _, g := range globs {
			if !g.used {
				return fmt.Errorf("%w: a name like %q", plan.ErrMissing, g.text)
			}
		}
	}
	return nil
}
