package torchdcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// maxCached bounds how many records' descriptions are kept.
const maxCached = 1 << 14

// maxValue bounds the bytes of a value, so that no value takes all memory.
const maxValue = 1 << 30

// archive reads the records of a checkpoint's data files.
type archive struct {
	store      blob.Store
	transforms map[string]Transform
	sizes      map[string]int64 // of the data files that exist

	mu     sync.Mutex
	opened map[recordAt]*torchsave.Tensor // guarded by mu
	good   map[recordAt]bool              // transformed records with matching checksums; guarded by mu
}

// recordAt is the beginning of a record.
type recordAt struct {
	file   string
	offset int64
}

// check returns an error that wraps storage.ErrCorrupt unless the file that loc
// names is there and holds it.
func (a *archive) check(loc *meta.Location) error {
	size, ok := a.sizes[loc.File]
	if !ok {
		return fmt.Errorf("%w: %s of %s is not there", storage.ErrCorrupt, loc.File, a.store)
	}
	if loc.Length > size || loc.Offset > size-loc.Length {
		return fmt.Errorf("%w: %d bytes at %d of %s, which has %d", storage.ErrCorrupt, loc.Length, loc.Offset, loc.File, size)
	}
	return nil
}

// recordError makes the damage of a record damage of the checkpoint.
func (a *archive) recordError(err error) error {
	if errors.Is(err, torchsave.ErrMalformed) && !errors.Is(err, storage.ErrCorrupt) {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	return err
}

// wholeBytes is the size up to which a record is read at once: its description
// takes about ten small reads.
const wholeBytes = 64 << 10

// pageBytes is the smallest hole between records worth skipping.
const pageBytes = 4 << 10

// within returns a function that reads inside of a range of a file; offsets count
// from the beginning of the range. It is not safe for concurrent use.
func within(r blob.Reader, loc *meta.Location) torchsave.ReadFunc {
	var all []byte
	return func(ctx context.Context, p []byte, off int64) error {
		if off < 0 || off > loc.Length-int64(len(p)) {
			return fmt.Errorf("%w: %d bytes at %d of a record of %d", storage.ErrCorrupt, len(p), off, loc.Length)
		}
		if loc.Length > wholeBytes {
			return r.ReadAt(ctx, p, loc.Offset+off)
		}

		if all == nil {
			b := make([]byte, loc.Length)
			if err := r.ReadAt(ctx, b, loc.Offset); err != nil {
				return err
			}
			all = b
		}

		copy(p, all[off:])
		return nil
	}
}

// useFunc receives the description of record n and a way to read it until it
// returns, or why the record cannot be read.
type useFunc func(n int, f *torchsave.File, read torchsave.ReadFunc, err error) error

// records reads the descriptions of many records. Small ones that lie side by
// side are one read. It calls use for each, from several goroutines at once.
func (a *archive) records(ctx context.Context, of []reading.ChunkID, o storage.ReadOptions, use useFunc) error {
	var small []reading.Request
	var large []int
	for n, id := range of {
		loc := id.Loc()
		if loc.Length > 0 && loc.Length <= wholeBytes && !isPacked(loc) && a.check(loc) == nil {
			small = append(small, reading.Request{File: loc.File, Offset: loc.Offset, Width: loc.Length, To: &whole{ctx, a, n, use}})
		} else {
			large = append(large, n)
		}
	}

	fo := reading.FetchOptions{Open: a.store.Open, ReadOptions: o, Gap: pageBytes}
	if r, ok := blob.As[blob.GapReader](a.store); ok {
		fo.Gap, fo.Slow = max(fo.Gap, r.ReadGap()), r.ReadGap() > 0
	}

	return work.Each(ctx, len(large)+1, o.Workers(), func(ctx context.Context, i int) error {
		if i == len(large) {
			_, err := reading.Fetch(ctx, small, fo)
			return err
		}

		n, called := large[i], false
		err := a.file(ctx, of[n].Loc(), mostOf(of[n]), func(f *torchsave.File, read torchsave.ReadFunc) error {
			called = true
			return use(n, f, read, nil)
		})
		if called || err == nil {
			return err
		}
		return use(n, nil, nil, err)
	})
}

// whole is a record that is read at once.
type whole struct {
	ctx context.Context
	a   *archive
	n   int
	use useFunc
}

// Take implements reading.Sink.
func (w *whole) Take(record []byte) error {
	read := func(_ context.Context, p []byte, off int64) error {
		if off < 0 || off > int64(len(record)-len(p)) {
			return fmt.Errorf("%w: %d bytes at %d of a record of %d", storage.ErrCorrupt, len(p), off, len(record))
		}
		copy(p, record[off:])
		return nil
	}
	f, err := torchsave.Open(w.ctx, read, int64(len(record)))
	return w.use(w.n, f, read, w.a.recordError(err))
}

// isPacked reports whether a record was transformed on its way to the file.
func isPacked(loc *meta.Location) bool { return loc.Detail != nil && len(loc.Detail.Transforms) > 0 }

// file reads the description of the record at loc and hands it, with a way to
// read it, to use. most bounds the bytes of a record that was transformed.
func (a *archive) file(ctx context.Context, loc *meta.Location, most int64, use func(f *torchsave.File, read torchsave.ReadFunc) error) error {
	if err := a.check(loc); err != nil {
		return err
	}
	if isPacked(loc) {
		return (&packed{a: a, loc: loc, most: most}).file(ctx, use)
	}

	r, err := a.store.Open(ctx, loc.File)
	if err != nil {
		return err
	}
	defer r.Close()
	return a.fileIn(ctx, r, loc, use)
}

// fileIn is file for a record that was not transformed, in an open file.
func (a *archive) fileIn(ctx context.Context, r blob.Reader, loc *meta.Location, use func(f *torchsave.File, read torchsave.ReadFunc) error) error {
	read := within(r, loc)
	f, err := torchsave.Open(ctx, read, loc.Length)
	if err != nil {
		return a.recordError(err)
	}
	return use(f, read)
}

// chunk is reading.Source.Place.
func (a *archive) chunk(ctx context.Context, e *meta.Entry, i int) (reading.Place, error) {
	t, err := a.tensor(ctx, &e.Tensor.Locs[i], mostFor(e, i))
	return a.chunkOf(e, i, t, err)
}

// chunks is reading.Source.Places.
func (a *archive) chunks(ctx context.Context, ids []reading.ChunkID, o storage.ReadOptions, found func(n int, c reading.Place) error) error {
	tell := func(n int, t *torchsave.Tensor, err error) error {
		at, err := a.chunkOf(ids[n].Entry, ids[n].N, t, err)
		if err != nil {
			return plan.Named(ids[n].Entry.FQN, err)
		}
		return found(n, at)
	}

	var unknown []reading.ChunkID
	var numbers []int // in ids
	for n, id := range ids {
		t := a.known(id.Loc())
		if t == nil {
			unknown, numbers = append(unknown, id), append(numbers, n)
		} else if err := tell(n, t, nil); err != nil {
			return err
		}
	}

	return a.records(ctx, unknown, o, func(k int, f *torchsave.File, _ torchsave.ReadFunc, err error) error {
		var t *torchsave.Tensor
		if err == nil {
			t, err = tensorIn(f)
		}
		if err == nil {
			a.remember(unknown[k].Loc(), t)
		}
		return tell(numbers[k], t, err)
	})
}

// chunkOf returns the place of chunk i of a tensor. Its record holds t, unless err is not
// nil.
func (a *archive) chunkOf(e *meta.Entry, i int, t *torchsave.Tensor, err error) (reading.Place, error) {
	loc := &e.Tensor.Locs[i]
	if err == nil {
		err = fits(e, i, t)
	}
	if err != nil {
		return reading.Place{}, fmt.Errorf("the chunk at %v, in %s at %d: %w", e.Tensor.Chunks[i].Offsets, loc.File, loc.Offset, err)
	}

	if isPacked(loc) {
		return reading.Place{Decoder: &decoder{&packed{a: a, loc: loc, most: mostFor(e, i)}, t}}, nil
	}
	return reading.Place{Region: torchfile.RegionOf(loc.File, loc.Offset, t)}, nil
}

// mostFor bounds the bytes of a chunk's record: PyTorch stores no more than the chunk's
// elements and their description. The allowance for views is generous.
func mostFor(e *meta.Entry, i int) int64 {
	n, err := tensor.NumBytes(e.Tensor.DType, e.Tensor.Chunks[i].Sizes)
	if err != nil || n > 1<<60 {
		return 1 << 62
	}
	return 4*n + 16<<20
}

// tensor returns the tensor that the record at loc holds.
func (a *archive) tensor(ctx context.Context, loc *meta.Location, most int64) (*torchsave.Tensor, error) {
	t := a.known(loc)
	if t != nil {
		return t, nil
	}

	err := a.file(ctx, loc, most, func(f *torchsave.File, _ torchsave.ReadFunc) (err error) {
		t, err = tensorIn(f)
		return err
	})
	if err != nil {
		return nil, err
	}

	a.remember(loc, t)
	return t, nil
}

// known returns the tensor of the record at loc, or nil if it must be read.
func (a *archive) known(loc *meta.Location) *torchsave.Tensor {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.opened[recordAt{loc.File, loc.Offset}]
}

// remember keeps the tensor of the record at loc.
func (a *archive) remember(loc *meta.Location, t *torchsave.Tensor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.opened) >= maxCached {
		clear(a.opened)
	}
	a.opened[recordAt{loc.File, loc.Offset}] = t
}

// compare compares the transformed record at loc with its checksum, if that has not been
// done yet. s has read some of it.
func (a *archive) compare(ctx context.Context, loc *meta.Location, s *sequence) error {
	at := recordAt{loc.File, loc.Offset}
	a.mu.Lock()
	known := a.good[at]
	a.mu.Unlock()
	if known {
		return nil
	}

	if err := s.finish(ctx); err != nil {
		return err
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.good[at] = true
	return nil
}

// tensorIn returns the tensor that a record holds.
func tensorIn(f *torchsave.File) (*torchsave.Tensor, error) {
	t, ok := f.Root.(*torchsave.Tensor)
	if !ok {
		return nil, fmt.Errorf("%w: the record holds %T instead of a tensor", storage.ErrCorrupt, f.Root)
	}
	return t, nil
}

// fits returns an error that wraps storage.ErrCorrupt unless t fits chunk i in the metadata.
func fits(e *meta.Entry, i int, t *torchsave.Tensor) error {
	if t.DType != e.Tensor.DType || !slices.Equal(t.Shape, e.Tensor.Chunks[i].Sizes) {
		return fmt.Errorf("%w: the record holds %v %v, the metadata says %v %v", storage.ErrCorrupt, t.DType, t.Shape, e.Tensor.DType, e.Tensor.Chunks[i].Sizes)
	}
	return nil
}

// value returns a value that is no tensor, encoded as package value does.
func (a *archive) value(ctx context.Context, e *meta.Entry) (codec string, data []byte, err error) {
	loc := &e.Bytes.Loc
	if loc.Length > maxValue {
		return "", nil, fmt.Errorf("%w: a value of %d bytes", storage.ErrCorrupt, loc.Length)
	}

	var v any
	err = a.file(ctx, loc, maxValue, func(f *torchsave.File, read torchsave.ReadFunc) error {
		v, err = torchsave.Materialise(ctx, f.Root, read, maxValue)
		return a.recordError(err)
	})
	if err == nil {
		codec, data, err = value.Encode(v)
	}
	if err != nil {
		return "", nil, fmt.Errorf("in %s at %d: %w", loc.File, loc.Offset, err)
	}
	return codec, data, nil
}

// mostOf bounds the bytes of the record of a chunk or value.
func mostOf(id reading.ChunkID) int64 {
	if id.Entry.Bytes != nil {
		return maxValue
	}
	return mostFor(id.Entry, id.N)
}

// checkFile is reading.Source.Check: it compares the records of a data file with the
// checksums that torch.save keeps. Records that cannot be read at all are found when
// chunks and values are located and decoded.
func (a *archive) checkFile(ctx context.Context, c *reading.FileCheck) (int64, error) {
	if err := c.Scan(ctx, nil); err != nil {
		return 0, err
	}

	var unsummed atomic.Int64
	err := a.records(ctx, c.Chunks, storage.ReadOptions{}, func(n int, f *torchsave.File, read torchsave.ReadFunc, err error) error {
		id := c.Chunks[n]
		if err == nil {
			unsummed.Add(payload(id.Loc(), f))
			err = f.Check(ctx, read, func(_ string, err error) { c.Problem(id.Entry.FQN, err.Error()) })
		}
		if err == nil && id.Entry.Tensor != nil {
			t, err := tensorIn(f)
			if at, err := a.chunkOf(id.Entry, id.N, t, err); err == nil {
				c.Found(id, at)
			}
		}

		return unreadable(err)
	})
	return unsummed.Load(), unreadable(err)
}

// unreadable returns err unless it means that a record cannot be read at all, or
// that its file is gone.
func unreadable(err error) error {
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrVersion) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// payload returns how many bytes of tensors and values in a record have no
// checksum.
func payload(loc *meta.Location, f *torchsave.File) int64 {
	if isPacked(loc) {
		return min(f.Unsummed, loc.Length) // of the stored bytes
	}
	return f.Unsummed
}
