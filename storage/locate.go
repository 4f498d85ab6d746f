package storage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
)

// Locate returns md's entries with the places that the ranks' results name: what
// a writer's Finish records. md is not changed. Every chunk and value must have
// a place; of several ranks' (see [plan.EveryHolder]) the highest rank's is
// taken. The error wraps meta.ErrInvalid.
func Locate(md *meta.Metadata, results []*WriteResults) ([]meta.Entry, error) {
	l := locating{entries: make([]meta.Entry, len(md.Entries)), first: make([]int, len(md.Entries))}
	missing := 0
	for i, e := range md.Entries {
		l.entries[i], l.first[i] = e, missing
		if e.Tensor != nil {
			t := *e.Tensor
			t.Locs = make([]meta.Location, len(t.Chunks))
			l.entries[i].Tensor = &t
			missing += len(t.Chunks)
		} else {
			b := *e.Bytes
			l.entries[i].Bytes = &b
			missing++
		}
	}
	by := make([]int, missing) // for each chunk and value: one more than the rank that wrote it
	for rank, r := range results {
		for i := range r.Items {
			at, err := l.place(&r.Items[i])
			if err == nil && by[at] == rank+1 {
				err = fmt.Errorf("%w: %v was written twice", meta.ErrInvalid, r.Items[i].Index)
			}
			if err != nil {
				return nil, fmt.Errorf("result of rank %d: %w", rank, err)
			}
			if by[at] == 0 {
				missing--
			}
			by[at] = rank + 1
		}
	}
	if missing != 0 {
		return nil, fmt.Errorf("%w: %d chunks or values were not written by any rank", meta.ErrInvalid, missing)
	}
	return l.entries, nil
}

// locating is the state of a call of Locate.
type locating struct {
	entries []meta.Entry
	first   []int // the number of each entry's first chunk, or of its value
	next    int   // the entry after the last one that was placed
}

// place notes one result and returns the number of its chunk or value.
func (l *locating) place(r *WriteResult) (int, error) {
	n, ok := l.next, true
	if n == len(l.entries) || l.entries[n].FQN != r.Index.FQN { // most results are sorted by name
		n, ok = slices.BinarySearchFunc(l.entries, r.Index.FQN, func(e meta.Entry, s string) int { return strings.Compare(e.FQN, s) })
	}
	if !ok {
		return 0, fmt.Errorf("%w: %v is not in the plan", meta.ErrInvalid, r.Index)
	}
	l.next = n + 1
	e := &l.entries[n]
	if e.Bytes != nil {
		e.Bytes.Inline, e.Bytes.Loc = r.Inline, r.Loc
		return l.first[n], nil
	}
	i, ok := e.Tensor.FindChunk(r.Index.Offset, r.Index.Hint)
	if !ok {
		return 0, fmt.Errorf("%w: %v is not in the plan", meta.ErrInvalid, r.Index)
	}
	e.Tensor.Locs[i] = r.Loc
	return l.first[n] + i, nil
}
