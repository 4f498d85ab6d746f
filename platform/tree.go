package platform

import (
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// MaxDepth bounds how deep the functions that walk through nested values go. It
// also ends the walk through a value that contains itself.
const MaxDepth = 256

// MapLeaves returns a copy of tree in which fn's results stand for its leaves.
// The tree itself stays as it is.
//
// What is opened are maps, slices, arrays, structs and pointers to structs whose
// type can hold a tensor somewhere, package value's Tuple, Dict, Set and Object
// among them. Keys and unexported fields are kept. Everything else is a leaf: a
// []float32 as a whole, and so a string. Maps by strings are walked in the order
// of their keys, others in any.
//
// A result must fit where the leaf was; nil fits wherever a nil may stand. Errors
// name the place.
func MapLeaves(tree any, fn func(leaf any) (any, error)) (any, error) {
	w := walker{fn: func(_ []string, leaf any) (any, error) { return fn(leaf) }}
	return w.walkAny(nil, tree)
}

// MapTensors is [MapLeaves] for the tensors of a tree: all other leaves are kept
// as they are.
func MapTensors(tree any, fn func(t *tensor.Tensor) (*tensor.Tensor, error)) (any, error) {
	return MapLeaves(tree, func(leaf any) (any, error) {
		if t, ok := leaf.(*tensor.Tensor); ok && t != nil {
			return fn(t)
		}
		return leaf, nil
	})
}

// Tensors returns the tensors of a tree, what [MapLeaves] opens, by their names:
// the keys, fields and positions on the way, joined by dots, as a checkpoint
// calls them. Two of one name are an error.
func Tensors(tree any) (map[string]*tensor.Tensor, error) {
	out := map[string]*tensor.Tensor{}
	w := walker{fn: func(at []string, leaf any) (any, error) {
		t, ok := leaf.(*tensor.Tensor)
		if !ok || t == nil {
			return leaf, nil
		}
		name := strings.Join(at, ".")
		if out[name] != nil {
			return nil, fmt.Errorf("a second tensor of that name: %w", value.ErrValue)
		}
		out[name] = t
		return leaf, nil
	}}
	if _, err := w.walkAny(nil, tree); err != nil {
		return nil, err
	}
	return out, nil
}
