package delta

import (
	"context"
	"sort"

	"github.com/cairn-ckpt/cairn/blob"
)

// Source is a file of an earlier save that segments may refer to.
type Source struct {
	*Reader
	folder string // of the earlier save
}

// OpenSource opens a file of the checkpoint in store, which is the folder of that name. The
// delta file either stores the file or has the hashes of its segments. OpenSource returns the
// errors of Open, also if segs is not nil: a save must not refer to files that are gone. In object
// storage, files are opened when they are read.
func OpenSource(ctx context.Context, store blob.Store, folder, delta string, segs *Segments) (*Source, error) {
	r, err := Open(ctx, store, delta, segs)
	if err != nil {
		return nil, err
	}
	for _, b := range r.files {
		if r.slow {
			break
		}
		if _, err := b.reader(ctx); err != nil {
			r.Close()
			return nil, err
		}
	}
	r.segs = nil // an encoder has locked the segments that it reads
	return &Source{r, folder}, nil
}

// fileBody is a body with its file.
type fileBody struct {
	file File
	Body
}

// known is a segment of a Source.
type known struct {
	hash   Hash
	bodies []fileBody
	step   *Step
	past   File // where the step begins
}

// segment returns the segment of n bytes at off, or nil if there is no such segment.
func (s *Source) segment(off int64, n int) *known {
	i := sort.Search(len(s.table.Segments), func(i int) bool { return s.starts[i] >= off })
	if i == len(s.table.Segments) || s.starts[i] != off || s.table.Segments[i].Len != n {
		return nil
	}
	seg := &s.table.Segments[i]
	out := &known{hash: seg.Hash, bodies: make([]fileBody, len(seg.Bodies)), step: seg.Step}
	for k, b := range seg.Bodies {
		out.bodies[k] = fileBody{s.beside(s.fileOf(b.File)), b}
	}
	if out.step != nil {
		out.past = s.beside(s.table.Past[out.step.From.File])
	}
	return out
}

// beside returns f with its folder, as another folder of the run refers to it.
func (s *Source) beside(f File) File {
	if f.Folder == "" {
		f.Folder = s.folder
	}
	return f
}
