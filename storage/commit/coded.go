package commit

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
)

// writeCoded writes one file in the form that its Coder gives it. The bytes are assembled
// in order, several segments at once, and the segments are coded in parallel.
func (w *fileWriter) writeCoded(ctx context.Context, f *DataFile) (*storage.WriteResults, error) {
	c := f.Coder
	lengths := c.Lengths()
	bw, err := w.store.Create(ctx, c.Name(), &blob.CreateOptions{IfAbsent: true, Piece: int64(w.outBytes)})
	if err != nil {
		return nil, err
	}
	defer bw.Abort() // does nothing once committed

	out := newAppender(bw, w.outBytes)
	defer out.close()

	as := &assembler{parts: f.Parts, data: w.data}
	defer as.close()

	var crc uint32
	var pieces []*codedPiece
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, min(runtime.GOMAXPROCS(0), w.pieces.Count()-1)))

	for i, next := 0, int64(0); i < len(lengths); {
		first, n, at := i, 0, next
		for i < len(lengths) && n+lengths[i] <= min(w.pieces.Size(), codeBytes) {
			n += lengths[i]
			i++
		}

		buf, done, err := as.view(gctx, int64(n))
		if buf == nil && err == nil {
			buf, err = as.piece(gctx, w.pieces, int64(n))
			done = func() error { w.pieces.Put(buf); return nil }
		}
		if err != nil {
			g.Go(func() error { return err }) // so that Wait returns an error, even if ctx was cancelled
			break
		}

		next += int64(n)
		p := &codedPiece{size: int64(n)}
		pieces = append(pieces, p)
		g.Go(work.Guard(func() (err error) {
			defer func() { err = errors.Join(err, done()) }()
			if f.Seen != nil {
				f.Seen(buf, at)
			}
			if p.crc, err = encode(gctx, c, out, buf, lengths[first:i:i], first); err != nil {
				return err
			}
			w.progress.Add(int64(n))
			return nil
		}))
	}

	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := as.next(ctx, nil); err != nil { // ends the parts of a file without bytes
		return nil, err
	}

	var total int64
	for _, p := range pieces {
		crc = crc32c.Join(crc, p.crc, p.size)
		total += p.size
	}

	end, coded := c.Finish(total, crc)
	if err := out.finish(ctx, end); err != nil {
		return nil, err
	}

	if w.created != nil {
		w.created(c.Name()) // before the commit, which may take effect and still return an error
	}

	if _, err := bw.Commit(ctx); err != nil {
		return nil, err
	}

	r := &storage.WriteResults{Files: []storage.File{{Name: c.Name(), Size: out.size, CRC32C: out.crc}}, Coded: []storage.Coded{coded}}
	if f.Results != nil {
		r.Items = f.Results()
	}
	return r, nil
}

// codeBytes is how many bytes one goroutine codes at once.
const codeBytes = 2 << 20

// codedPiece is a group of segments.
type codedPiece struct {
	size int64
	crc  uint32
}

// codeBuffers has memory for the codes of segments.
var codeBuffers = sync.Pool{New: func() any { return new([]byte) }}

// encode codes the segments in buf, which have the given lengths; first is the number of
// the first one. It returns the checksum of buf.
func encode(ctx context.Context, c Coder, out *appender, buf []byte, lengths []int, first int) (crc uint32, err error) {
	code := codeBuffers.Get().(*[]byte)
	defer codeBuffers.Put(code)

	for i, n := range lengths {
		if len(*code) < n+n/4 {
			*code = make([]byte, n+n/4)
		}

		crc = crc32c.Update(crc, buf[:n])
		p, err := c.Encode(ctx, first+i, buf[:n], *code)
		if err != nil {
			return 0, err
		}

		if len(p) > 0 {
			off, err := out.append(ctx, p)
			if err != nil {
				return 0, err
			}
			c.Stored(first+i, off)
		}
		buf = buf[n:]
	}

	return crc, nil
}

// appender writes bytes one after the other, in pieces. append is safe for concurrent use.
type appender struct {
	w    blob.Writer
	pool *work.Pool

	mu     sync.Mutex
	buf    []byte // the piece that is being filled, or nil; guarded by mu
	filled int    // guarded by mu
	size   int64  // bytes so far; guarded by mu
	crc    uint32 // of them; guarded by mu
}

// outPieces is how many pieces an appender fills or writes at the same time.
const outPieces = 4

func newAppender(w blob.Writer, size int) *appender {
	return &appender{w: w, pool: work.NewPool(size, outPieces*int64(size), 2)}
}

// append appends p and returns its offset. It writes the pieces that p fills.
func (a *appender) append(ctx context.Context, p []byte) (off int64, err error) {
	type piece struct {
		buf []byte
		off int64
	}
	var full []piece
	a.mu.Lock()
	off = a.size
	a.crc = crc32c.Update(a.crc, p)

	for len(p) > 0 && err == nil {
		if a.buf == nil {
			if a.buf, err = a.pool.Get(ctx); err != nil {
				break
			}
		}

		n := copy(a.buf[a.filled:], p)
		p = p[n:]
		a.size += int64(n)
		if a.filled += n; a.filled == len(a.buf) {
			full = append(full, piece{a.buf, a.size - int64(len(a.buf))})
			a.buf, a.filled = nil, 0
		}
	}

	a.mu.Unlock()
	for _, f := range full {
		if err == nil {
			err = a.w.WriteAt(ctx, f.buf, f.off)
		}
		a.pool.Put(f.buf)
	}

	return off, err
}

// finish appends the end and writes the buffered bytes.
func (a *appender) finish(ctx context.Context, end []byte) error {
	if _, err := a.append(ctx, end); err != nil {
		return err
	}
	if a.filled == 0 {
		return nil
	}
	return a.w.WriteAt(ctx, a.buf[:a.filled], a.size-int64(a.filled))
}

// close gives the memory back.
func (a *appender) close() {
	if a.buf != nil {
		a.pool.Put(a.buf)
		a.buf = nil
	}
}
