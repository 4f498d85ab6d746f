package torchfile

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/value"
)

// The names of what is no dict at the outermost.
const (
	rootTensor = "tensor"
	rootValue  = "value"
)

// maxLeaves bounds the values of a file: a small pickle can name one list in
// many places, and those in many again.
const maxLeaves = 1 << 22

// leaf is one value of a file, with its place.
type leaf struct {
	path  meta.Path
	value any
}

// flatten opens the dicts and lists of a value, as PyTorch does before it saves
// a checkpoint. A dict whose keys are strings and integers is opened, unless it
// is empty: then it is a leaf, for whoever loads the state may ask for it, as
// optimizers without state do. A list is opened only if a tensor or such a dict
// is somewhere inside, and is a leaf otherwise, as everything else is. Leaves are
// in a fixed order. A tuple at
// the outermost counts as a list, so that its tensors have names; what is
// written of it is a list, below the name of what is no dict.
func flatten(root any) ([]leaf, error) {
	f := &flattener{holds: map[any]bool{}}
	if pairs, ok := asDict(root); ok {
		err := f.dict(nil, pairs)
		return f.out, err
	}
	name := rootValue
	switch t := root.(type) {
	case *torchsave.Tensor:
		name = rootTensor
	case value.Tuple:
		root = []any(t) // several states in one file
	}
	err := f.visit(meta.Path{meta.Key(name)}, root)
	return f.out, err
}

type flattener struct {
	out   []leaf
	nodes int
	holds map[any]bool // what is known of lists, by where they are
}

func (f *flattener) visit(at meta.Path, v any) error {
	if f.nodes++; f.nodes > maxLeaves {
		return fmt.Errorf("more than %d values", maxLeaves)
	}
	if len(at) > plan.MaxDepth {
		return fmt.Errorf("%q… is nested deeper than %d", at[:8].FQN(), plan.MaxDepth)
	}
	if pairs, ok := asDict(v); ok && len(pairs) > 0 {
		return f.dict(at, pairs)
	}
	if l, ok := v.([]any); ok && f.opens(l, 0) {
		for i, e := range l {
			if err := f.visit(step(at, meta.Pos(i)), e); err != nil {
				return err
			}
		}
		return nil
	}
	f.out = append(f.out, leaf{at, v})
	return nil
}

func (f *flattener) dict(at meta.Path, pairs []value.Pair) error {
	for _, p := range pairs {
		if err := f.visit(step(at, p.Key.(meta.Step)), p.Value); err != nil {
			return err
		}
	}
	return nil
}

// step returns the path one step further, in memory of its own.
func step(at meta.Path, s meta.Step) meta.Path {
	out := make(meta.Path, len(at), len(at)+1)
	copy(out, at)
	return append(out, s)
}

// opens reports whether a tensor or a dict that is opened is somewhere inside a
// list.
func (f *flattener) opens(l []any, depth int) bool {
	if len(l) == 0 {
		return false
	}
	if known, ok := f.holds[&l[0]]; ok {
		return known
	}
	found := depth > plan.MaxDepth // the walk refuses it then
	for i := 0; i < len(l) && !found; i++ {
		switch e := l[i].(type) {
		case *torchsave.Tensor:
			found = true
		case []any:
			found = f.opens(e, depth+1)
		default:
			found = isOpened(e)
		}
	}
	f.holds[&l[0]] = found
	return found
}

// isOpened reports whether v is a dict with something in it that has a name of
// its own.
func isOpened(v any) bool {
	pairs, ok := asDict(v)
	return ok && len(pairs) > 0
}

// asDict returns the pairs of a dict whose keys are strings and integers, the
// keys as steps.
func asDict(v any) ([]value.Pair, bool) {
	var out []value.Pair
	switch d := v.(type) {
	case map[string]any:
		out = make([]value.Pair, 0, len(d))
		for _, k := range slices.Sorted(maps.Keys(d)) {
			out = append(out, value.Pair{Key: meta.Key(k), Value: d[k]})
		}
		return out, true
	case *value.Dict:
		out = make([]value.Pair, len(d.Pairs))
		for i, p := range d.Pairs {
			k, ok := keyStep(p.Key)
			if !ok {
				return nil, false
			}
			out[i] = value.Pair{Key: k, Value: p.Value}
		}
		return out, true
	}
	return nil, false
}

// keyStep returns the step to a key that is a string or an integer.
func keyStep(k any) (meta.Step, bool) {
	switch k := k.(type) {
	case string:
		return meta.Key(k), true
	case int64:
		return meta.IntKey(k), true
	case uint64:
		return meta.Step{Key: strconv.FormatUint(k, 10), Int: true}, true
	case *big.Int:
		if k.BitLen() > 8*meta.MaxFQN { // too long for a name, whatever it is
			return meta.Step{}, false
		}
		return meta.Step{Key: k.String(), Int: true}, true
	}
	return meta.Step{}, false
}
