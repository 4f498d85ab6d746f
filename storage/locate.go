package storage

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
)

// Locate returns md's entries with the places that the ranks' results name: what
// a writer's Finish records. md is not changed. Every chunk and value must have
// exactly one place; the error wraps meta.ErrInvalid.
func Locate(md *meta.Metadata, results []*WriteResults) ([]meta.Entry, error) {
	entries := make([]meta.Entry, len(md.Entries))
	placed := 0
	for i, e := range md.Entries {
		entries[i] = e
		if e.Tensor != nil {
			t := *e.Tensor
			t.Locs = make([]meta.Location, len(t.Chunks))
			entries[i].Tensor = &t
			placed += len(t.Chunks)
		} else {
			b := *e.Bytes
			entries[i].Bytes = &b
			placed++
		}
	}
	out := meta.Metadata{Entries: entries}
	for rank, r := range results {
		for i := range r.Items {
			if err := locateOne(&out, &r.Items[i]); err != nil {
				return nil, fmt.Errorf("result of rank %d: %w", rank, err)
			}
			placed--
		}
	}
	if placed != 0 {
		return nil, fmt.Errorf("%w: %d chunks or values were not written by any rank", meta.ErrInvalid, placed)
	}
	return entries, nil
}

func locateOne(md *meta.Metadata, r *WriteResult) error {
	e, ok := md.Find(r.Index.FQN)
	if !ok {
		return fmt.Errorf("%w: %v is not in the plan", meta.ErrInvalid, r.Index)
	}
	if e.Bytes != nil {
		if e.Bytes.Inline != nil || e.Bytes.Loc.File != "" {
			return fmt.Errorf("%w: %v was written twice", meta.ErrInvalid, r.Index)
		}
		e.Bytes.Inline, e.Bytes.Loc = r.Inline, r.Loc
		return nil
	}
	i, ok := e.Tensor.FindChunk(r.Index.Offset, r.Index.Hint)
	if !ok {
		return fmt.Errorf("%w: %v is not in the plan", meta.ErrInvalid, r.Index)
	}
	if e.Tensor.Locs[i].File != "" {
		return fmt.Errorf("%w: %v was written twice", meta.ErrInvalid, r.Index)
	}
	e.Tensor.Locs[i] = r.Loc
	return nil
}
