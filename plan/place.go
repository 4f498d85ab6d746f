package plan

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
)

// maxList bounds the position in a list that a checkpoint's path may name, so
// that a hostile path cannot make a huge list.
const maxList = 1 << 20

// Place puts v at path inside s, making the maps and lists on the way; lists
// are padded with nil. It is the inverse of flattening.
func Place(s State, path meta.Path, v any) error {
	switch {
	case len(path) == 0:
		return fmt.Errorf("%w: empty path", ErrState)
	case path[0].List:
		return fmt.Errorf("%w: path %v begins with a position", ErrState, []meta.Step(path))
	case len(path) > MaxDepth:
		return fmt.Errorf("%w: path of %d steps, at most %d", ErrState, len(path), MaxDepth)
	}
	_, err := place(s, path, v)
	return err
}

// place returns node with v put at path below it.
func place(node any, path meta.Path, v any) (any, error) {
	if len(path) == 0 {
		if node != nil {
			return nil, fmt.Errorf("%w: two values at one path", ErrState)
		}
		return v, nil
	}
	if path[0].List {
		return placeInList(node, path, v)
	}
	m, ok := node.(map[string]any)
	if node == nil {
		m, ok = map[string]any{}, true
	}
	if !ok {
		return nil, fmt.Errorf("%w: %v leads through a %T", ErrState, []meta.Step(path), node)
	}
	child, err := place(m[path[0].Key], path[1:], v)
	if err != nil {
		return nil, err
	}
	m[path[0].Key] = child
	return m, nil
}

func placeInList(node any, path meta.Path, v any) (any, error) {
	l, ok := node.([]any)
	pos := path[0].Pos
	if (node != nil && !ok) || pos < 0 || pos > maxList {
		return nil, fmt.Errorf("%w: position %d of a %T", ErrState, pos, node)
	}
	for len(l) <= pos {
		l = append(l, nil)
	}
	child, err := place(l[pos], path[1:], v)
	if err != nil {
		return nil, err
	}
	l[pos] = child
	return l, nil
}
