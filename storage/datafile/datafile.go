// Package datafile writes the data files of a checkpoint: files whose every byte
// has its place before the first is written, assembled in order and written in
// parallel pieces within a budget of memory. It does not know any format: the
// formats describe the parts of their files. The contract is at File and Write.
package datafile

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// File is a file to be written: its parts in their order, without gaps.
type File struct {
	Name  string
	Parts []Part
	// Results is called after every part has passed. It returns the locations of
	// the file's items.
	Results func() []storage.WriteResult
}

// Size returns the bytes of all parts.
func (f *File) Size() int64 {
	var n int64
	for i := range f.Parts {
		n += f.Parts[i].Length
	}
	return n
}

// Part is a run of bytes of a file. Exactly one of Literal, Item, Tail and Parts
// makes them; a part of length zero may have none of them.
type Part struct {
	// Length is the number of bytes. It is known before the bytes are.
	Length int64
	// Literal are the bytes themselves.
	Literal []byte
	// Item is an item of the plan: its content is resolved when its turn comes.
	Item *plan.WriteItem
	// Tail makes the bytes after everything before them has passed, so that they
	// can depend on it.
	Tail func() ([]byte, error)
	// Parts makes the parts that the run consists of when its turn comes, so that
	// a file of very many does not hold them all. They are not used any more when
	// Parts of the next part is called. Pass and End are nil then.
	Parts func() ([]Part, error)
	// Pass, if not nil, is called with the bytes in order; from is the offset of p
	// in the part. It must not keep or change p.
	Pass func(p []byte, from int64)
	// End, if not nil, is called after the last byte, also for a part without
	// bytes.
	End func()
}

// Options change how files are written.
type Options struct {
	// Files is the number of files that are written at the same time, at least 1.
	Files int
	// BufferBytes bounds the memory for bytes on their way to the store.
	BufferBytes int64
	// Created, if not nil, is called with the name of each file before the file
	// becomes visible. From then on the file may exist, even after an error.
	Created func(name string)
	// Hold, if not nil, is given the writer of each file that is complete, in
	// the place of its commit: the file appears when the caller commits it, and
	// is durable then. The session's journal is not asked.
	Hold func(name string, w blob.Writer)
	// Replace lets new files replace existing files of the same names.
	Replace bool
}

// Write writes files to a store, with the content that data resolves. It returns
// the results of all files, in their order. The files are durable then; after an
// error some of them may be there. None of the names may exist in the store, unless
// Options.Replace is set.
//
// Write does not write a file that the session's journal lists as finished, and notes
// each file there that it has finished. It reports planned bytes in all to the
// session's Progress.
func Write(ctx context.Context, store blob.Store, files []*File, data storage.Resolver, s storage.Session, planned int64, o Options) (*storage.WriteResults, error) {
	w := &writer{store: store, data: data, journal: s.Journal, created: o.Created, hold: o.Hold, replace: o.Replace}
	w.told = &work.Share{Tell: s.Progress, Plan: planned}
	for _, f := range files {
		w.told.Total += f.Size()
	}
	w.pieces = newPieces(o.BufferBytes, min(len(files), o.Files))
	results := make([]*storage.WriteResults, len(files))
	err := work.Each(ctx, len(files), max(1, min(o.Files, w.pieces.Count()/2)), func(ctx context.Context, i int) (err error) {
		results[i], err = w.file(ctx, files[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(results) == 1 {
		return results[0], nil
	}
	items := 0
	for _, r := range results {
		items += len(r.Items)
	}
	out := &storage.WriteResults{Items: make([]storage.WriteResult, 0, items)}
	for _, r := range results {
		out.Items = append(out.Items, r.Items...)
		out.Files = append(out.Files, r.Files...)
	}
	return out, nil
}

// writer is what the files of one save share.
type writer struct {
	store   blob.Store
	data    storage.Resolver
	journal storage.Journal
	created func(string)
	hold    func(string, blob.Writer)
	replace bool
	pieces  *bufpool.Pool
	told    *work.Share
}

// file writes one file, unless the journal lists it as finished.
func (w *writer) file(ctx context.Context, f *File) (*storage.WriteResults, error) {
	if w.journal == nil || w.hold != nil {
		return w.write(ctx, f)
	}
	r, ok, err := w.journal.Finished(ctx, f.Name)
	if err != nil {
		return nil, err
	}
	if ok {
		w.told.Add(f.Size())
		return r, nil
	}
	if err := w.store.Remove(ctx, f.Name); err != nil { // finished, but not noted
		return nil, err
	}
	if r, err = w.write(ctx, f); err != nil {
		return nil, err
	}
	return r, w.journal.Note(ctx, f.Name, r)
}

// write writes one file: its bytes are assembled in order, piece by piece, and
// the pieces are written in parallel.
func (w *writer) write(ctx context.Context, f *File) (*storage.WriteResults, error) {
	size, total := int64(w.pieces.Size()), f.Size()
	bw, err := w.store.Create(ctx, f.Name, &blob.CreateOptions{Size: total, Piece: size, IfAbsent: !w.replace})
	if err != nil {
		return nil, err
	}
	held := false
	defer func() {
		if !held {
			bw.Abort() // does nothing once committed
		}
	}()
	as := &assembler{parts: f.Parts, data: w.data}
	defer as.close()
	crcs := make([]uint32, (total+size-1)/size)
	g, gctx := errgroup.WithContext(ctx)
	for at := int64(0); at < total; at += size {
		buf, err := as.piece(gctx, w.pieces, min(size, total-at))
		if err != nil {
			g.Go(func() error { return err }) // cancelled is not done
			break
		}
		g.Go(work.Guard(func() error {
			defer w.pieces.Put(buf)
			crcs[at/size] = crc32c.Checksum(buf)
			if err := bw.WriteAt(gctx, buf, at); err != nil {
				return err
			}
			w.told.Add(int64(len(buf)))
			return nil
		}))
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := as.next(ctx, nil); err != nil { // a file without bytes has parts too
		return nil, err
	}
	if w.hold != nil {
		held = true
		w.hold(f.Name, bw)
	} else if err := w.commit(ctx, f.Name, bw); err != nil {
		return nil, err
	}
	out := &storage.WriteResults{Files: []storage.File{{Name: f.Name, Size: total, CRC32C: joinPieces(crcs, size, total)}}}
	if f.Results != nil {
		out.Items = f.Results()
	}
	return out, nil
}

// commit makes a file visible.
func (w *writer) commit(ctx context.Context, name string, bw blob.Writer) error {
	if w.created != nil {
		w.created(name) // before the commit: its success may go unreported
	}
	_, err := bw.Commit(ctx)
	return err
}

// joinPieces returns the CRC of a file from those of its pieces.
func joinPieces(crcs []uint32, piece, size int64) uint32 {
	crc := uint32(0)
	for i, c := range crcs {
		crc = crc32c.Join(crc, c, min(piece, size-int64(i)*piece))
	}
	return crc
}

// pieceBytes is the size of one write: large enough for any medium's full
// speed, small enough that a few are nothing.
const pieceBytes = 8 << 20

// maxPieces bounds the pieces in flight for each file: more do not make a disk
// faster.
const maxPieces = 6

// minPiece is the smallest piece that a small budget leads to.
const minPiece = 256 << 10

// newPieces returns the buffers for writing that number of files at a time within a
// budget.
func newPieces(budget int64, files int) *bufpool.Pool {
	size := int64(pieceBytes)
	for size > minPiece && 2*size > budget {
		size /= 2
	}
	return bufpool.New(int(size), min(budget, int64(max(1, files))*maxPieces*size), 2)
}

// Bytes resolves the content of a value.
func Bytes(data storage.Resolver, it *plan.WriteItem) ([]byte, error) {
	d, err := data.Resolve(it)
	if err != nil {
		return nil, err
	}
	if d.Tensor != nil || d.Stream != nil || int64(len(d.Bytes)) != it.Size {
		return nil, fmt.Errorf("%w: %q was planned as %d bytes, but is %d now", plan.ErrState, it.FQN(), it.Size, len(d.Bytes))
	}
	return d.Bytes, nil
}
