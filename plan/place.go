package plan

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
)

// maxGaps bounds how many positions of lists may be left empty by the paths of
// a checkpoint, so that a hostile path cannot make a huge list.
const maxGaps = 1 << 20

// Place puts v at path inside s, making the maps and lists on the way; lists
// are padded with nil. It is the inverse of flattening, except that every map it
// makes is a map[string]any: integers become keys in decimal form, which flatten
// to the same names. The error wraps ErrState where the path is empty, begins with a position, leads through
// something that is neither map[string]any nor []any, ends where a value is, or
// is unreasonably long.
func Place(s State, path meta.Path, v any) error {
	p := placer{room: maxGaps}
	return p.place(s, path, v)
}

// placer puts values into a state, within a bound on the lists it makes.
type placer struct {
	room int // positions that may yet be added to lists
	pad  any // what stands in the positions that nothing was put at
}

func (p *placer) place(s State, path meta.Path, v any) error {
	switch {
	case s == nil:
		return fmt.Errorf("%w: nil state", ErrState)
	case len(path) == 0:
		return fmt.Errorf("%w: empty path", ErrState)
	case path[0].List:
		return fmt.Errorf("%w: path %v begins with a position", ErrState, []meta.Step(path))
	case len(path) > MaxDepth:
		return fmt.Errorf("%w: path of %d steps, at most %d", ErrState, len(path), MaxDepth)
	}
	_, err := p.below(s, path, v)
	return err
}

// below returns node with v put at path below it.
func (p *placer) below(node any, path meta.Path, v any) (any, error) {
	empty := node == nil || node == p.pad
	switch {
	case len(path) == 0 && empty:
		return v, nil
	case len(path) == 0:
		return nil, fmt.Errorf("%w: two values at one path", ErrState)
	case path[0].List && empty:
		return p.inList(nil, path, v)
	case empty:
		return p.inMap(map[string]any{}, path, v)
	}
	switch n := node.(type) {
	case []any:
		if path[0].List {
			return p.inList(n, path, v)
		}
	case map[string]any:
		if !path[0].List {
			return p.inMap(n, path, v)
		}
	}
	return nil, fmt.Errorf("%w: %v leads through a %T", ErrState, []meta.Step(path), node)
}

func (p *placer) inMap(m map[string]any, path meta.Path, v any) (any, error) {
	child, err := p.below(m[path[0].Key], path[1:], v)
	if err != nil {
		return nil, err
	}
	m[path[0].Key] = child
	return m, nil
}

func (p *placer) inList(l []any, path meta.Path, v any) (any, error) {
	pos := path[0].Pos
	if pos < 0 || pos >= len(l)+p.room {
		return nil, fmt.Errorf("%w: position %d of a list of %d", ErrState, pos, len(l))
	}
	for len(l) <= pos {
		l = append(l, p.pad)
		p.room--
	}
	child, err := p.below(l[pos], path[1:], v)
	if err != nil {
		return nil, err
	}
	l[pos] = child
	return l, nil
}
