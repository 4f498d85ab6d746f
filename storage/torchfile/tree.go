package torchfile

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/value"
)

// maxGaps bounds how many positions of lists may be left empty, so that a few
// paths cannot make huge lists.
const maxGaps = 1 << 20

// tree builds a state that will be pickled. Unlike plan.Place it makes dicts with
// integer keys, which a plan.State does not have.
type tree struct {
	root node
	gaps int
}

// node is a dict, a list or, below everything, a value.
type node struct {
	below map[meta.Step]*node // nil: a value, or an empty node
	list  bool
	value any
	leaf  bool
}

// put puts v at a path. The error wraps plan.ErrState if the path is invalid, or
// contradicts an earlier one.
func (t *tree) put(path meta.Path, v any) error {
	if len(path) == 0 || path[0].List || len(path) > plan.MaxDepth {
		return fmt.Errorf("%w: path %v of %d steps", plan.ErrState, []meta.Step(path[:min(len(path), 8)]), len(path))
	}

	n := &t.root
	for i, s := range path {
		if err := s.Check(); err != nil {
			return fmt.Errorf("%w: %w", plan.ErrState, err)
		}
		if n.leaf || n.below != nil && n.list != s.List {
			return fmt.Errorf("%w: %v leads through something else at %v", plan.ErrState, []meta.Step(path), []meta.Step(path[:i]))
		}
		n = n.child(s)
	}

	if n.leaf || n.below != nil {
		return fmt.Errorf("%w: two values at %v", plan.ErrState, []meta.Step(path))
	}

	n.leaf, n.value = true, v
	return nil
}

// child returns the node one step further, and makes it if need be.
func (n *node) child(s meta.Step) *node {
	if s.List {
		s.Key = ""
	} else {
		s.Pos = 0
	}

	if n.below == nil {
		n.below, n.list = map[meta.Step]*node{}, s.List
	}

	c := n.below[s]
	if c == nil {
		c = &node{}
		n.below[s] = c
	}
	return c
}

// Pack returns a file of torch.save with a nested state: each value at its path. The error wraps
// plan.ErrState if two paths contradict each other.
func Pack(paths []meta.Path, values []any) ([]byte, error) {
	t := &tree{}
	for i, p := range paths {
		if err := t.put(p, values[i]); err != nil {
			return nil, err
		}
	}

	state, err := t.state()
	if err != nil {
		return nil, err
	}
	return torchsave.Marshal(state)
}

// state returns the state: a map[string]any, or a *value.Dict if a key is an
// integer.
func (t *tree) state() (any, error) {
	t.gaps = 0
	return t.dict(&t.root)
}

func (t *tree) build(n *node) (any, error) {
	switch {
	case n.leaf:
		return n.value, nil
	case n.list:
		return t.listOf(n)
	}
	return t.dict(n)
}

// listOf makes a list, with None at positions that were not put.
func (t *tree) listOf(n *node) (any, error) {
	last := 0
	for s := range n.below {
		last = max(last, s.Pos)
	}

	if last >= len(n.below)+maxGaps-t.gaps {
		return nil, fmt.Errorf("%w: position %d of a list with %d in it", plan.ErrState, last, len(n.below))
	}

	t.gaps += last + 1 - len(n.below)
	out := make([]any, last+1)
	for s, c := range n.below {
		var err error
		if out[s.Pos], err = t.build(c); err != nil {
			return nil, err
		}
	}

	return out, nil
}

func (t *tree) dict(n *node) (any, error) {
	keys := slices.SortedFunc(maps.Keys(n.below), compareKeys)
	out := &value.Dict{Pairs: make([]value.Pair, len(keys))}
	texts := make(map[string]any, len(keys))
	for i, s := range keys {
		v, err := t.build(n.below[s])
		if err != nil {
			return nil, err
		}
		out.Pairs[i] = value.Pair{Key: keyOf(s), Value: v}
		texts[s.Key] = v
	}

	if len(keys) == 0 || !keys[0].Int { // they come first
		return texts, nil
	}
	return out, nil
}

// keyOf returns the key of a dict: a string, an int64 or a *big.Int.
func keyOf(s meta.Step) any {
	if !s.Int {
		return s.Key
	}
	n := integer(s)
	if n.IsInt64() {
		return n.Int64()
	}
	return n
}

func integer(s meta.Step) *big.Int {
	n, _ := new(big.Int).SetString(s.Key, 10) // checked by put
	return n
}

// compareKeys orders integers by their size, before all others.
func compareKeys(a, b meta.Step) int {
	switch {
	case a.Int && b.Int:
		return integer(a).Cmp(integer(b))
	case a.Int:
		return -1
	case b.Int:
		return 1
	}
	return strings.Compare(a.Key, b.Key)
}
