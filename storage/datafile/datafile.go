// Package datafile writes the data files of a checkpoint. The layout of a file is fixed
// before its first byte is written. The bytes are assembled in order and written in
// pieces, in parallel, within a memory budget. The package does not depend on any
// format: the formats describe the parts of their files. The contract is at File and
// Write.
package datafile

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// File is a file to be written: its parts in their order, without gaps.
type File struct {
	Name  string
	Parts []Part
	// Results, if not nil, is called after the last part has ended. It returns the
	// locations of the file's items.
	Results func() []storage.WriteResult
}

// Size returns the total length of all parts.
func (f *File) Size() int64 {
	var n int64
	for i := range f.Parts {
		n += f.Parts[i].Length
	}
	return n
}

// Part is a contiguous range of a file. Exactly one of Literal, Item, Tail and Parts is
// set and provides its bytes. In a part of length zero, all of them may be unset.
type Part struct {
	// Length is the number of bytes. It is known before the bytes themselves.
	Length int64
	// Literal are the bytes themselves.
	Literal []byte
	// Item is an item of the plan. Its content is resolved when the part is written.
	Item *plan.WriteItem
	// Tail returns the bytes. It is called after Pass and End of all parts before this
	// one, so the bytes can depend on them.
	Tail func() ([]byte, error)
	// Parts returns the parts that this part consists of. It is called when this part
	// is written, so that a file of very many parts need not hold all of them in
	// memory. The returned parts must not have Parts themselves, and they are not used
	// any more when Parts of a later part is called. If Parts is set, Pass and End are
	// nil.
	Parts func() ([]Part, error)
	// Pass, if not nil, is called with consecutive pieces of the bytes; from is the
	// offset of p in the part. It must not keep or change p.
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
	// becomes visible. From then on the file may exist, even if Write returns an error.
	Created func(name string)
	// Hold, if not nil, is called with the writer of each complete file. Write does
	// not commit the file then: it becomes visible and durable when the caller commits
	// it. The session's journal is not used.
	Hold func(name string, w blob.Writer)
	// Replace lets new files replace existing files of the same names.
	Replace bool
}

// Write writes files to a store. data provides the content of their items. Write
// returns the results of all files, in the order of files. When it returns nil, the
// files are durable. When it returns an error, some of them may exist. The names must
// not exist in the store, unless Options.Replace is set.
//
// If the session has a journal, Write skips the files that the journal lists as
// finished, and adds each file to the journal after it is finished. The numbers that
// Write passes to the session's Progress sum up to planned.
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

// writer is the state that all files of one call of Write share.
type writer struct {
	store   blob.Store
	data    storage.Resolver
	journal storage.Journal
	created func(string)
	hold    func(string, blob.Writer)
	replace bool
	pieces  *work.Pool
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
	if err := w.store.Remove(ctx, f.Name); err != nil { // it exists if it was finished but not added to the journal
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
			g.Go(func() error { return err }) // so that Wait returns an error, also if ctx was cancelled
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
	if err := as.next(ctx, nil); err != nil { // ends the parts of a file without bytes
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
		w.created(name) // before the commit, which may take effect and still return an error
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

// pieceBytes is the size of one write. It is large enough for the full speed of any
// medium, and small enough to keep several pieces in memory.
const pieceBytes = 8 << 20

// maxPieces bounds the number of pieces in memory for each file. More do not make a disk
// faster.
const maxPieces = 6

// minPiece is the size of a piece if the budget is small.
const minPiece = 256 << 10

// newPieces returns the buffers for writing that number of files at the same time,
// within a budget.
func newPieces(budget int64, files int) *work.Pool {
	size := int64(pieceBytes)
	for size > minPiece && 2*size > budget {
		size /= 2
	}
	return work.NewPool(int(size), min(budget, int64(max(1, files))*maxPieces*size), 2)
}

// Bytes returns the content of a value. It returns an error if its size is not the
// planned size.
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
