package dcpmeta

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
)

// Merge returns the union of the documents that the ranks of one save wrote,
// each for itself. Chunks with equal boxes are there once, as the first document
// has them; so are values. Documents that differ in their dialect or in what a
// name stands for (its kind, dtype, shape or path) are an error that wraps
// ErrConflict. What the save as a whole tells is that of the first. The result
// shares memory with docs. Merging none is an error that wraps ErrInvalid.
func Merge(docs []*Document) (*Document, error) {
	if len(docs) == 0 {
		return nil, invalid("there is no document")
	}
	if len(docs) == 1 {
		return docs[0], nil
	}
	out := *docs[0]
	entries := map[string]*merged{}
	for i, d := range docs {
		if d.Dialect != out.Dialect {
			return nil, fmt.Errorf("%w: document %d is of %v, the first of %v", ErrConflict, i, d.Dialect, out.Dialect)
		}
		for j := range d.Meta.Entries {
			if err := merge(entries, &d.Meta.Entries[j]); err != nil {
				return nil, fmt.Errorf("%w: document %d: %w", ErrConflict, i, err)
			}
		}
	}
	m := *docs[0].Meta
	m.Entries = make([]meta.Entry, 0, len(entries))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		m.Entries = append(m.Entries, entries[name].Entry)
	}
	out.Meta = &m
	return &out, nil
}

// merged is an entry that grows.
type merged struct {
	meta.Entry
	boxes map[string]bool // the chunks that it has
}

func merge(entries map[string]*merged, e *meta.Entry) error {
	have := entries[e.FQN]
	if have == nil {
		have = &merged{Entry: *e}
		if e.Tensor != nil {
			t := *e.Tensor
			t.Chunks, t.Locs = nil, nil
			have.Tensor, have.boxes = &t, map[string]bool{}
		}
		entries[e.FQN] = have
	}
	if err := have.agrees(e); err != nil {
		return err
	}
	if e.Tensor == nil {
		return nil
	}
	t := have.Tensor
	for i, c := range e.Tensor.Chunks {
		k := key(c.Offsets) + key(c.Sizes)
		if have.boxes[k] {
			continue
		}
		have.boxes[k] = true
		t.Chunks = append(t.Chunks, c)
		t.Locs = append(t.Locs, e.Tensor.Locs[i])
	}
	return nil
}

// agrees returns an error unless e describes the same thing.
func (m *merged) agrees(e *meta.Entry) error {
	switch {
	case (m.Tensor == nil) != (e.Tensor == nil):
		return fmt.Errorf("%q is a tensor here and a value there", e.FQN)
	case !m.Path.Equal(e.Path):
		return fmt.Errorf("%q stands at %v here and at %v there", e.FQN, m.Path, e.Path)
	case m.Tensor == nil:
		return nil
	case m.Tensor.DType != e.Tensor.DType:
		return fmt.Errorf("%q is of %v here and of %v there", e.FQN, m.Tensor.DType, e.Tensor.DType)
	case !slices.Equal(m.Tensor.Shape, e.Tensor.Shape):
		return fmt.Errorf("%q has the shape %v here and %v there", e.FQN, m.Tensor.Shape, e.Tensor.Shape)
	}
	return nil
}
