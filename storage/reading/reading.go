// Package reading reads and verifies checkpoints of all formats. It does not depend on
// any format: each format describes a checkpoint as a Source, and Open returns a
// storage.Checkpoint for it. The contract is at Source.
package reading

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Source is the description of a checkpoint by its format. Its functions are called
// from several goroutines at once.
type Source struct {
	// Metadata describes the checkpoint, if the format reads the whole description at
	// once. It is valid, every chunk has a Location, and Storage.Version names the
	// format, such as "torchdcp 1.0.0". Nil: Index is set.
	Metadata *meta.Metadata
	// Index describes the checkpoint, if the format reads the description on demand.
	// Nil: Metadata is set.
	Index Index
	// Files are the files that the checkpoint consists of. Files that describe it
	// come first. The size of a file is the recorded size if the format records a
	// checksum of the file. Otherwise it is the size that the file had at opening.
	Files []storage.File
	// Bases are the names of other folders that hold bytes of the files. Errors of damaged
	// bytes name them.
	Bases []string
	// Stored are the names of the files that the store has, if they are others than Files.
	// Nil: they are the same.
	Stored []string
	// StoredAs has the names of files that the store has in place of some of Files, by the
	// names of these. Problems and errors of damaged bytes name them.
	StoredAs map[string]string
	// Problems are problems that were found while the checkpoint was opened, and in
	// spite of which it could be opened. Verify reports them. The names that cannot be
	// read are in Metadata.Missing.
	Problems []storage.VerifyProblem
	// Copies are the tensors that the checkpoint holds twice. Verify and CheckCopies
	// compare them.
	Copies []Copy
	// Place returns the place of chunk i of a tensor. It may read files only if Places
	// is set. If Value is nil, Place also returns the place of a value, as if it were a
	// chunk of bytes.
	Place func(ctx context.Context, e *meta.Entry, i int) (Place, error)
	// Places, if not nil, finds the places of many chunks with fewer reads than calls
	// of Place would need. It calls found for each chunk, with its position in ids and
	// its place, from several goroutines at once.
	Places func(ctx context.Context, ids []ChunkID, o storage.ReadOptions, found func(n int, p Place) error) error
	// Value reads a value and returns its bytes in a codec of package value, even if
	// the format stores it in another encoding. Nil: values are stored in such a codec,
	// and Place returns their place.
	Value func(ctx context.Context, e *meta.Entry) (codec string, data []byte, err error)
	// Check, if not nil, is called by Verify for each file of Files. It must call
	// FileCheck.Scan. Then it reports the problems of the file, such as records with a wrong
	// checksum. It returns the number of bytes of tensors and values in the file that have no
	// checksum. Nil: no byte of any file has a checksum.
	Check func(ctx context.Context, f *FileCheck) (unsummed int64, err error)
	// CheckFiles, if not nil, implements Checkpoint.CheckFiles. It returns the store's
	// descriptions of the files.
	CheckFiles func(ctx context.Context) ([]blob.Info, error)
	// Changed, if not nil, reports whether the checkpoint was replaced since it was
	// opened. Watch sets it.
	Changed func(ctx context.Context) bool

	records []string // files that a new checkpoint replaces under the same name; set by Watch
}

// storedAs returns the name of the file that the store has in place of a file.
func (s *Source) storedAs(file string) string { return cmp.Or(s.StoredAs[file], file) }

// Index is a description that is read on demand. Its methods are specified at
// storage.Checkpoint.
type Index interface {
	Storage() meta.Storage
	Metadata(ctx context.Context) (*meta.Metadata, error)
	Find(ctx context.Context, fqn string) (*meta.Entry, bool, error)
	Close() error
}

// inMemory is the Index of a source that has Metadata.
type inMemory struct{ md *meta.Metadata }

func (x inMemory) Storage() meta.Storage { return x.md.Storage }

func (x inMemory) Metadata(ctx context.Context) (*meta.Metadata, error) {
	return x.md, context.Cause(ctx)
}

func (x inMemory) Find(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, false, err
	}
	if m, ok := x.md.FindMissing(fqn); ok {
		return nil, false, plan.Named(fqn, m.Err)
	}
	e, ok := x.md.Find(fqn)
	return e, ok, nil
}

func (x inMemory) Close() error { return nil }

// ChunkID identifies chunk N of a tensor, or a value. Entry is the entry of either.
type ChunkID struct {
	Entry *meta.Entry
	N     int
}

// Loc returns the location of the chunk or value in the metadata.
func (id ChunkID) Loc() *meta.Location {
	if id.Entry.Bytes != nil {
		return &id.Entry.Bytes.Loc
	}
	return &id.Entry.Tensor.Locs[id.N]
}

// Chunks iterates over the chunks and values of entries, without values that are stored
// in the metadata.
func Chunks(entries []meta.Entry) iter.Seq[ChunkID] {
	return func(yield func(ChunkID) bool) {
		for k := range entries {
			e, n := &entries[k], 0
			if e.Tensor != nil {
				n = len(e.Tensor.Locs)
			} else if e.Bytes.Inline == nil {
				n = 1
			}

			for i := range n {
				if !yield(ChunkID{e, i}) {
					return
				}
			}
		}
	}
}

// elements returns the sizes and the dtype of the chunk. A value is a chunk of
// bytes.
func (id ChunkID) elements() ([]int64, tensor.DType) {
	if b := id.Entry.Bytes; b != nil {
		return []int64{b.Size}, tensor.Uint8
	}
	return id.Entry.Tensor.Chunks[id.N].Sizes, id.Entry.Tensor.DType
}

// Place is where the elements of one chunk are: in a Region of a file, or in the result
// of a Decoder. Exactly one of them is set.
type Place struct {
	Region  *Region
	Decoder Decoder
}

// Region is a strided view of a part of a file.
type Region struct {
	File string
	// Offset is the offset of the first element in the file, in bytes. End is the end
	// of the bytes of the chunk. Bytes beyond End are not read.
	Offset, End int64
	// DType is the type of the stored elements. If it differs from the entry's,
	// they are converted.
	DType tensor.DType
	// Strides are the distances between neighbouring elements in each dimension. They
	// are counted in elements and not negative. Nil: the chunk is contiguous and in
	// row-major order.
	Strides []int64
	// Resolve, if not nil, converts the stored elements in p to the elements that they
	// represent. For example, PyTorch stores the conjugate of a tensor as the tensor
	// and a flag. Resolve is called from several goroutines at once.
	Resolve func(p []byte)
	// Sum, if not nil, is the checksum of the record that the region lies in. The
	// comment of Checkpoint describes when it is compared.
	Sum *Sum
	// Tiles, if not nil, are the tiles of the chunk. Reads are rounded out to whole
	// tiles, and each tile is checked before its elements are used. If Tiles is set,
	// the chunk is contiguous, and Strides, Resolve and Sum are nil.
	Tiles Tiles
}

// Tiles divide the bytes of a contiguous chunk into tiles, each with a checksum.
type Tiles interface {
	// Cover returns spans of whole tiles that hold all elements of a box of the chunk.
	// No tile is in two spans. A span has about most bytes or fewer. If the holes
	// between the rows of a span are at most gap bytes, the span also includes the
	// tiles in the holes.
	Cover(box tensor.Box, most, gap int64) []Span
	// Verifier returns a new verifier of the bytes of a span.
	Verifier(s *Span) Verifier
	// Fill copies the elements of box that lie in a span to dst and converts them to
	// the dtype of dst. p holds the bytes of the span. dst has the shape of box.
	Fill(dst *tensor.Tensor, box tensor.Box, s *Span, p []byte) error
}

// Span is a rectangle of whole tiles that is read at once: rows of the same width.
type Span struct {
	// Offset is the offset of the first byte in the chunk, Width the bytes of a
	// row, Rows the number of rows and Pitch the distance between them.
	Offset, Width, Rows, Pitch int64
	// Bytes is the total size of those tiles of the span that hold elements of the box.
	Bytes int64
	// At is negative, unless the span can be read directly into the memory of the box:
	// then it is the offset of the span in that memory. This needs a span and a box
	// that are contiguous in the chunk, and the span must lie inside the box.
	At int64
}

// Verifier compares the bytes of a span with the checksums of its tiles.
type Verifier interface {
	// Step takes the next bytes of the span.
	Step(p []byte)
	// Match reports whether the bytes of all steps have the right checksums.
	Match() bool
}

// Decoder computes the elements of a chunk that is stored in another form, such as
// compressed or quantised.
type Decoder interface {
	// Cut divides a box, with offsets relative to the chunk, into parts that are decoded in
	// parallel. Decode needs about budget bytes of memory for each part. If parts need more work
	// in total than the whole box, Cut returns only the box.
	Cut(box tensor.Box, budget int64) []tensor.Box
	// Decode fills dst with the elements of box, which has offsets relative to the chunk. dst
	// has the shape of box and any dtype. Decode returns the number of bytes that it read from
	// files. It uses at most about budget bytes of memory, if the stored form allows that.
	Decode(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (read int64, err error)
}

// Join returns a source with the entries and files of a and b, which must have
// Metadata, Value and Check, and no name and no file in common. It has the problems, the
// copies and the missing names of both. Everything else, such as Metadata.Storage and Changed,
// comes from a.
func Join(a, b *Source) *Source {
	md := *a.Metadata
	md.Entries = slices.Concat(a.Metadata.Entries, b.Metadata.Entries)
	slices.SortFunc(md.Entries, func(x, y meta.Entry) int { return strings.Compare(x.FQN, y.FQN) })
	md.Missing = slices.Concat(a.Metadata.Missing, b.Metadata.Missing)
	slices.SortFunc(md.Missing, func(x, y meta.Missing) int { return strings.Compare(x.FQN, y.FQN) })

	names, files := map[string]bool{}, map[string]bool{}
	for i := range b.Metadata.Entries {
		names[b.Metadata.Entries[i].FQN] = true
	}

	for _, f := range b.Files {
		files[f.Name] = true
	}

	of := func(e *meta.Entry) *Source {
		if names[e.FQN] {
			return b
		}
		return a
	}

	out := *a
	out.Metadata, out.Files, out.Problems = &md, slices.Concat(a.Files, b.Files), slices.Concat(a.Problems, b.Problems)
	out.Copies = slices.Concat(a.Copies, b.Copies)
	out.Place = func(ctx context.Context, e *meta.Entry, i int) (Place, error) { return of(e).Place(ctx, e, i) }
	out.Places = func(ctx context.Context, ids []ChunkID, o storage.ReadOptions, found func(n int, p Place) error) error {
		for _, s := range []*Source{a, b} {
			var own []ChunkID
			var numbers []int // positions in ids
			for n, id := range ids {
				if of(id.Entry) == s {
					own, numbers = append(own, id), append(numbers, n)
				}
			}

			if err := s.places(ctx, own, o, func(k int, p Place) error { return found(numbers[k], p) }); err != nil {
				return err
			}
		}
		return nil
	}

	out.Value = func(ctx context.Context, e *meta.Entry) (string, []byte, error) { return of(e).Value(ctx, e) }
	out.Check = func(ctx context.Context, f *FileCheck) (int64, error) {
		if files[f.File.Name] {
			return b.Check(ctx, f)
		}
		return a.Check(ctx, f)
	}
	return &out
}

// places finds the places of many chunks. It uses Places if that is set, and Place
// otherwise.
func (s *Source) places(ctx context.Context, ids []ChunkID, o storage.ReadOptions, found func(n int, p Place) error) error {
	if s.Places != nil && len(ids) > 1 {
		return s.Places(ctx, ids, o, found)
	}

	for n, id := range ids {
		p, err := s.Place(ctx, id.Entry, id.N)
		if err != nil {
			return plan.Named(id.Entry.FQN, err)
		}
		if err := found(n, p); err != nil {
			return err
		}
	}

	return context.Cause(ctx)
}

// watchTries bounds the number of times that Watch calls describe.
const watchTries = 10

// Watch returns the source that describe returns. If the checkpoint was replaced while
// describe ran, Watch calls describe again. records are the names of the files that a
// save replaces when it replaces the checkpoint; they need not exist. If one of them
// changes later, errors of the opened checkpoint wrap storage.ErrChanged.
func Watch(ctx context.Context, store blob.Store, records []string, describe func(ctx context.Context) (*Source, error)) (*Source, error) {
	look := func(ctx context.Context) ([]blob.Info, error) { return stat(ctx, store, records) }
	seen, err := look(ctx)
	if err != nil {
		return nil, err
	}

	for range watchTries {
		src, err := describe(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		now, lookErr := look(ctx)
		if lookErr != nil {
			return nil, errors.Join(err, lookErr)
		}
		if !slices.EqualFunc(seen, now, sameInfo) {
			seen = now
			continue
		}

		if err == nil {
			src.records = records
			src.Changed = func(ctx context.Context) bool {
				now, err := look(ctx)
				return err == nil && !slices.EqualFunc(seen, now, sameInfo)
			}
		}
		return src, err
	}

	return nil, fmt.Errorf("%w: %s was replaced %d times while it was opened", storage.ErrChanged, store, watchTries)
}

// stat returns the current state of files. For a file that does not exist, the name in
// the result is empty.
func stat(ctx context.Context, store blob.Store, names []string) ([]blob.Info, error) {
	out := make([]blob.Info, len(names))
	for i, name := range names {
		info, err := store.Stat(ctx, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		out[i] = info
	}
	return out, nil
}

func sameInfo(a, b blob.Info) bool {
	return a.Name == b.Name && a.Size == b.Size && a.ModTime.Equal(b.ModTime)
}

// LostFiles maps the names of files that are missing or damaged to errors, which wrap
// storage.ErrCorrupt.
type LostFiles map[string]error

// Damaged returns the error for a file that is missing or damaged. It wraps
// storage.ErrCorrupt.
func Damaged(name, format string, args ...any) error {
	return &storage.FileError{File: name, Err: fmt.Errorf("%w: %w", storage.ErrCorrupt, fmt.Errorf(format, args...))}
}

// Err returns all errors, joined.
func (l LostFiles) Err() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(l)) {
		errs = append(errs, l[name])
	}
	return errors.Join(errs...)
}

// Note sets md.Missing to missing, the names that cannot be read, and returns the
// problems for a VerifyReport: one for each lost file, with the names that it holds,
// and one for each name in another file. Names without a file become one problem of
// listing, the file that lists the files. A lost file that is not in missing is added to
// md.Missing: the names that it holds are not known. If no name in md can be read, Note
// returns an error.
func (l LostFiles) Note(md *meta.Metadata, missing []meta.Missing, listing string) (problems []storage.VerifyProblem, err error) {
	names := map[string][]string{} // by file
	for _, m := range missing {
		if _, ok := l[m.File]; ok || m.File == "" {
			names[m.File] = append(names[m.File], m.String())
			continue
		}
		problems = append(problems, storage.VerifyProblem{File: m.File, FQN: m.FQN, Text: problemOf(m.Err)})
	}

	for file, err := range l {
		if len(names[file])+len(names[""]) == 0 {
			missing = append(missing, meta.Missing{Below: true, File: file, Err: err})
		}
		problems = append(problems, storage.VerifyProblem{File: file, FQNs: names[file], Text: problemOf(err)})
	}

	slices.SortFunc(missing, func(a, b meta.Missing) int {
		return cmp.Or(strings.Compare(a.FQN, b.FQN), strings.Compare(a.File, b.File))
	})
	md.Missing = missing
	if n := names[""]; len(n) > 0 {
		problems = append(problems, storage.VerifyProblem{File: listing, FQNs: n, Text: "files that it lists are missing or damaged"})
	}

	if len(missing) == 0 || len(md.Entries) > 0 {
		return problems, nil
	}

	errs := []error{l.Err()}
	for _, m := range missing {
		if m.File != "" && l[m.File] == nil {
			errs = append(errs, m.Err)
		}
	}

	return problems, errors.Join(errs...)
}

// problemOf returns the text of err, without the name of the file.
func problemOf(err error) string {
	if f, ok := errors.AsType[*storage.FileError](err); ok {
		return f.Problem().Text
	}
	return err.Error()
}
