package delta

import (
	"context"
	"errors"
	"io/fs"
	"sort"

	"github.com/cairn-ckpt/cairn/blob"
)

// Source is a file of an earlier save that segments may refer to, opened for reading.
type Source struct {
	blob.Reader
	folder string // of the earlier save
	stored File   // the file with the bytes: the delta file, or the file itself
	table  *Table // nil: the bytes have no hashes
	starts []int64
}

// OpenSource opens a file of the checkpoint in store, which is the folder of that name. If
// delta is not empty, the file is stored in that delta file. Otherwise hashes, if not empty,
// is the name of a delta file whose table has the hashes of the file.
func OpenSource(ctx context.Context, store blob.Store, folder, name, delta, hashes string) (*Source, error) {
	if delta != "" {
		r, err := Open(ctx, store, delta)
		if err != nil {
			return nil, err
		}
		return &Source{Reader: r, folder: folder, stored: File{folder, delta, r.files[0].Size()}, table: r.table, starts: r.starts}, nil
	}
	r, err := store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	s := &Source{Reader: r, folder: folder, stored: File{folder, name, r.Size()}}
	if hashes == "" {
		return s, nil
	}
	h, err := store.Open(ctx, hashes)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil // the bytes are there, and can be compared
	}
	if err == nil {
		defer h.Close()
		s.table, err = ReadTable(ctx, h)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	s.starts = startsOf(s.table)
	return s, nil
}

// place is a body with its file.
type place struct {
	file File
	Body
}

// segment returns the hash and the bodies of the segment of n bytes at off. The hash is nil
// if it is unknown. ok is false if there is no such segment.
func (s *Source) segment(off int64, n int) (hash *Hash, bodies []place, ok bool) {
	if s.table == nil {
		if off < 0 || off > s.Size()-int64(n) {
			return nil, nil, false
		}
		return nil, []place{{s.stored, Body{Off: off, Len: n}}}, true
	}
	i := sort.Search(len(s.table.Segments), func(i int) bool { return s.starts[i] >= off })
	if i == len(s.table.Segments) || s.starts[i] != off || s.table.Segments[i].Len != n {
		return nil, nil, false
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
	return &seg.Hash, bodies, true
}
