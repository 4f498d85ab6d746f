package delta

import (
	"context"
	"fmt"
	"sort"

	"github.com/cairn-ckpt/cairn/blob"
)

// Source is a file of an earlier save that segments may refer to, opened for reading.
type Source struct {
	blob.Reader
	folder string // of the earlier save
	stored File   // the file with the bytes: the delta file, or the file itself
	table  *Table
	starts []int64
}

// OpenSource opens a file of the checkpoint in store, which is the folder of that name. The
// delta file either stores the file or, if hashes is set, has the hashes of its segments.
func OpenSource(ctx context.Context, store blob.Store, folder, name, delta string, hashes bool) (*Source, error) {
	if !hashes {
		r, err := Open(ctx, store, delta)
		if err != nil {
			return nil, err
		}
		return &Source{Reader: r, folder: folder, stored: File{Folder: folder, Name: delta, Size: r.files[0].Size()}, table: r.table, starts: r.starts}, nil
	}
	h, err := store.Open(ctx, delta)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	t, err := ReadTable(ctx, h)
	if err != nil {
		return nil, err
	}
	r, err := store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	if r.Size() != t.Size {
		r.Close()
		return nil, fmt.Errorf("%w: %s has %d bytes, and %s is about %d", ErrTable, name, r.Size(), delta, t.Size)
	}
	return &Source{Reader: r, folder: folder, stored: File{Folder: folder, Name: name, Size: r.Size()}, table: t, starts: startsOf(t)}, nil
}

// place is a body with its file.
type place struct {
	file File
	Body
}

// segment returns the hash and the bodies of the segment of n bytes at off. ok is false if
// there is no such segment.
func (s *Source) segment(off int64, n int) (hash Hash, bodies []place, ok bool) {
	i := sort.Search(len(s.table.Segments), func(i int) bool { return s.starts[i] >= off })
	if i == len(s.table.Segments) || s.starts[i] != off || s.table.Segments[i].Len != n {
		return Hash{}, nil, false
	}
	seg := &s.table.Segments[i]
	bodies = make([]place, len(seg.Bodies))
	for k, b := range seg.Bodies {
		f := s.stored
		if b.File > 0 {
			f = s.table.Files[b.File-1]
			if f.Folder == "" {
				f.Folder = s.folder
			}
		}
		bodies[k] = place{f, b}
	}
	return seg.Hash, bodies, true
}
