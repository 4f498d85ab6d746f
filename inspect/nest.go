package inspect

import (
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// Nest returns everything below a name, at a dot, as it was nested in the saved
// state. Maps are map[string]any, lists are []any, and leaf returns the value of an
// entry. If an entry has no path in the state, the rest of its name is a key.
func Nest(entries []*meta.Entry, name string, leaf func(e *meta.Entry) (any, error)) (any, error) {
	const root = "root" // so that what is below name may be a list
	s := plan.State{}
	for _, e := range entries {
		v, err := leaf(e)
		if err != nil {
			return nil, err
		}
		path := append(meta.Path{meta.Key(root)}, pathBelow(e, strings.TrimSuffix(name, "."))...)
		if err := plan.Place(s, path, v); err != nil {
			return nil, fmt.Errorf("%q: %w", e.FQN, err)
		}
	}
	return s[root], nil
}

// pathBelow returns the path of an entry from name on.
func pathBelow(e *meta.Entry, name string) meta.Path {
	if e.Path.FQN() == e.FQN {
		for i := range e.Path {
			if e.Path[:i].FQN() == name {
				return e.Path[i:]
			}
		}
	}
	return meta.Path{meta.Key(strings.TrimPrefix(strings.TrimPrefix(e.FQN, name), "."))}
}
