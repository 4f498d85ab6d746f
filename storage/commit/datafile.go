package commit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// DataFile is a file to be written: its parts in their order, without gaps.
type DataFile struct {
	Name  string
	Parts []Part
	// Results, if not nil, is called after the last part has ended. It returns the
	// locations of the file's items.
	Results func() []storage.WriteResult
	// Coder, if not nil, codes the bytes: they are stored in another form.
	Coder Coder
	// Seen, if not nil, is called with pieces of the file while they are in memory, in any
	// order and from several goroutines, each byte once. It must not keep or change p.
	Seen func(p []byte, at int64)
	// Beside, if not nil, returns a small file that is written after this one, which has
	// the given checksum.
	Beside func(crc uint32) File
}

// Coder stores the bytes of a file in another form, in a file of another name.
type Coder interface {
	// Name returns the name of the file that is stored.
	Name() string
	// Lengths returns the lengths of the segments that the file is divided into, none
	// longer than the piece of a small budget.
	Lengths() []int
	// Encode returns the bytes to store for segment i with the bytes src. The result may be src,
	// or nil to store no bytes, or use the memory of code, which is at least a quarter longer.
	// It is called from several goroutines at once.
	Encode(ctx context.Context, i int, src, code []byte) ([]byte, error)
	// Stored is called with the offset of the result of Encode, unless it is empty.
	Stored(i int, off int64)
	// Finish is called after all other methods with the size and the checksum of the file
	// itself. It returns the bytes at the end of the stored file, and the description of the
	// stored file.
	Finish(size int64, crc uint32) (end []byte, coded storage.Coded)
}

// Size returns the total length of all parts.
func (f *DataFile) Size() int64 {
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
	// Ties are items that are one tensor with Item. They are not read, but released when
	// Item has been read.
	Ties []*plan.WriteItem
	// Tail returns the bytes. It is called after Pass of all parts before this one,
	// so the bytes can depend on them.
	Tail func() ([]byte, error)
	// Parts returns the parts that this part consists of. It is called when this part
	// is written, so that a file of very many parts need not hold all of them in
	// memory. The returned parts are not used any more when Parts of a later part is
	// called. If Parts is set, Pass is nil.
	Parts func() ([]Part, error)
	// Pass, if not nil, is called with consecutive pieces of the bytes; from is the
	// offset of p in the part. It must not keep or change p.
	Pass func(p []byte, from int64)
}

// fileWriter writes data files in the store of a Committer. The layout of a file is
// fixed before its first byte is written. The bytes are assembled in order and written
// in pieces, in parallel, within a memory budget.
type fileWriter struct {
	store blob.Store
	data  storage.Resolver // provides the content of the items
	sess  storage.Session
	// created, if not nil, is called with the name of each file before the file
	// becomes visible. From then on the file may exist, even if write returns an error.
	created func(name string)
	// hold, if not nil, is called with the writer of each complete file. The file is not
	// committed then: it becomes visible and durable when the caller commits it. The
	// session's journal is not used.
	hold func(w blob.Writer)
	// condition returns the condition of a file. Nil: the file must not exist.
	condition func(name string) blob.CreateOptions

	pieces   *work.Pool
	outBytes int // the size of one write of a coded file
	progress work.Share
}

// divide returns the files that this process writes.
func (w *fileWriter) divide(files []*DataFile) []*DataFile {
	if w.sess.Divide == nil {
		return files
	}

	offer := make([]storage.File, len(files))
	for i, f := range files {
		offer[i] = storage.File{Name: f.Name, Size: f.Size()}
	}

	var mine []*DataFile
	for i, ok := range w.sess.Divide(offer, w.hold != nil) {
		if ok {
			mine = append(mine, files[i])
		}
	}

	return mine
}

// write writes files, parallel of them at the same time. It uses at most about budget
// bytes of memory. It returns the results of all files, in the order of files. When it
// returns nil, the files are durable. When it returns an error, some of them may exist.
//
// If the session has a journal, write skips the files that the journal lists as
// finished, and adds each file to the journal after it is finished. The numbers that
// it passes to the session's Progress add up to planned, or if the session divides the
// files, to the part of planned that corresponds to the files of this process.
func (w *fileWriter) write(ctx context.Context, files []*DataFile, parallel int, budget, planned int64) (*storage.WriteResults, error) {
	w.progress.Tell, w.progress.Plan = w.sess.Progress, planned
	for _, f := range files {
		w.progress.Total += f.Size()
	}

	if files = w.divide(files); len(files) == 0 {
		return &storage.WriteResults{}, nil
	}

	pieces := max(1, min(len(files), parallel)) * maxPieces
	if _, slow := blob.As[blob.GapReader](w.store); slow {
		pieces = max(pieces, slowPieces)
	}

	size := pieceSize(budget)
	w.outBytes = size
	if !slices.ContainsFunc(files, func(f *DataFile) bool { return f.Coder == nil }) {
		// Coding takes longer than assembling and writing: all processors take part.
		size, pieces = min(size, codeBytes), max(pieces, runtime.GOMAXPROCS(0)+maxPieces)
	}

	w.pieces = work.NewPool(size, min(budget, int64(pieces)*int64(size)), 2)
	results := make([]*storage.WriteResults, len(files))
	err := work.Each(ctx, len(files), max(1, min(parallel, w.pieces.Count()/2)), func(ctx context.Context, i int) (err error) {
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
		out.Coded = append(out.Coded, r.Coded...)
	}

	return out, nil
}

// file writes one file, unless the journal lists it as finished.
func (w *fileWriter) file(ctx context.Context, f *DataFile) (*storage.WriteResults, error) {
	if w.sess.Journal == nil || w.hold != nil {
		return w.writeFile(ctx, f)
	}

	r, ok, err := w.sess.Journal.Finished(ctx, f.Name)
	if err != nil {
		return nil, err
	}
	if ok {
		w.progress.Add(f.Size())
		return r, nil
	}

	if r, err = w.writeFile(ctx, f); err != nil {
		return nil, err
	}
	return r, w.sess.Journal.Note(ctx, f.Name, r)
}

// writeFile writes one file: its bytes are assembled in order, piece by piece, and
// the pieces are written in parallel.
func (w *fileWriter) writeFile(ctx context.Context, f *DataFile) (*storage.WriteResults, error) {
	if f.Coder != nil {
		return w.writeCoded(ctx, f)
	}

	size, total := int64(w.pieces.Size()), f.Size()
	// With a journal, the file exists if it was finished, but not added to the journal. It is
	// replaced in one step: a checkpoint may have it, if another run of the same save has
	// just committed.
	opts := blob.CreateOptions{IfAbsent: w.sess.Journal == nil}
	if w.condition != nil {
		opts = w.condition(f.Name)
	}

	resident := blob.IsResident(w.store)
	if opts.Size = total; !resident {
		opts.Piece = size
	}
	bw, err := w.store.Create(ctx, f.Name, &opts)
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

	var pieces []*piece
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(maxPieces, w.pieces.Count()))
	for at := int64(0); at < total; {
		var p *piece
		var err error
		if resident {
			p, err = as.lend(gctx, w.pieces, min(size, total-at))
		} else {
			p, err = as.copied(gctx, w.pieces, min(size, total-at))
		}
		if err != nil {
			g.Go(func() error { return err }) // so that Wait returns an error, even if ctx was cancelled
			break
		}

		p.at, p.size = at, int64(len(p.bytes))
		at += p.size
		pieces = append(pieces, p)
		step := len(p.bytes)
		if resident {
			step = cacheBytes
		}

		g.Go(work.Guard(func() (err error) {
			defer func() { err = errors.Join(err, p.end()) }()
			if err := p.write(gctx, bw, f.Seen, step); err != nil {
				return err
			}

			w.progress.Add(p.size)
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
		w.hold(bw)
	} else {
		if w.created != nil {
			w.created(f.Name) // before the commit, which may take effect and still return an error
		}
		if _, err := bw.Commit(ctx); err != nil {
			return nil, err
		}
	}

	out := &storage.WriteResults{Files: []storage.File{{Name: f.Name, Size: total}}}
	for _, p := range pieces {
		file := &out.Files[0]
		file.CRC32C = crc32c.Join(file.CRC32C, p.crc, p.size)
	}

	if f.Beside != nil {
		b := f.Beside(out.Files[0].CRC32C)
		if w.created != nil {
			w.created(b.Name)
		}
		if _, err := blob.WriteAll(ctx, w.store, b.Name, b.Data, &blob.CreateOptions{IfAbsent: opts.IfAbsent}); err != nil {
			return nil, err
		}
		out.Files = append(out.Files, storage.File{Name: b.Name, Size: int64(len(b.Data)), CRC32C: crc32c.Checksum(b.Data)})
	}

	if f.Results != nil {
		out.Items = f.Results()
	}
	return out, nil
}

// piece is a range of a data file.
type piece struct {
	bytes []byte // nil after end
	at    int64
	size  int64
	crc   uint32
	done  func() error // ends the use of bytes
}

// write computes the checksum of the piece and writes it, a step at a time.
func (p *piece) write(ctx context.Context, to blob.Writer, seen func(p []byte, at int64), step int) error {
	for b, at := p.bytes, p.at; len(b) > 0; {
		n := min(step, len(b))
		p.crc = crc32c.Update(p.crc, b[:n])
		if seen != nil {
			seen(b[:n], at)
		}
		if err := to.WriteAt(ctx, b[:n], at); err != nil {
			return err
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// end ends the use of the bytes.
func (p *piece) end() error {
	p.bytes = nil
	return p.done()
}

const (
	// cacheBytes is how many bytes of a file in memory are checked and written at once: they are
	// read from memory once, and stay in the processor's cache.
	cacheBytes = 512 << 10
	// leastLoan is the size of the smallest part that is written to memory without a copy. Smaller
	// ones are assembled first.
	leastLoan = 256 << 10
	// pieceBytes is the size of one write. It is large enough for the full speed of any
	// medium, and small enough to keep several pieces in memory.
	pieceBytes = 8 << 20
	// minPiece is the size of a piece if the budget is small.
	minPiece = 256 << 10
	// maxPieces bounds the number of pieces in memory for each file. More pieces do not
	// make writing faster.
	maxPieces = 6
	// slowPieces is the least number of pieces in memory if the requests of the store
	// take long compared with the bytes that they write.
	slowPieces = 16
)

// pieceSize returns the size of a piece, within a budget.
func pieceSize(budget int64) int {
	size := int64(pieceBytes)
	for size > minPiece && 2*size > budget {
		size /= 2
	}
	return int(size)
}

// ValueBytes returns the content of a value. It returns an error if its size is not the
// planned size.
func ValueBytes(data storage.Resolver, it *plan.WriteItem) ([]byte, error) {
	d, err := data.Resolve(it)
	if err != nil {
		return nil, err
	}
	if d.Tensor != nil || d.Stream != nil || int64(len(d.Bytes)) != it.Size {
		return nil, fmt.Errorf("%w: %q was planned as %d bytes, but is %d now", plan.ErrState, it.FQN(), it.Size, len(d.Bytes))
	}
	return d.Bytes, nil
}
