package fetch

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
)

// openFile is a data file, opened by the first fetch that needs it and closed
// after the last.
type openFile struct {
	name string
	left atomic.Int64
	mu   sync.Mutex
	r    blob.Reader // guarded by mu
}

func (f *openFile) open(ctx context.Context, o *Options) (blob.Reader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.r != nil {
		return f.r, nil
	}
	r, err := o.Open(ctx, f.name)
	if err != nil {
		return nil, err
	}
	f.r = r
	return r, nil
}

// done closes the file after its last fetch.
func (f *openFile) done() {
	if f.left.Add(-1) == 0 {
		f.close()
	}
}

func (f *openFile) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.r != nil {
		f.r.Close()
		f.r = nil
	}
}

// closeAll closes the files of a run that ended early.
func closeAll(fetches []fetch) {
	for i := range fetches {
		fetches[i].file.close()
	}
}

// carryOut reads one fetch and hands its bytes over.
func (o *Options) carryOut(ctx context.Context, f *fetch, pool *bufpool.Pool) (Stats, error) {
	r, err := f.file.open(ctx, o)
	if err != nil {
		return Stats{}, err
	}
	defer f.file.done()
	q := &f.requests[0]
	if q.Direct != nil {
		return o.readInto(ctx, r, q, pool)
	}
	buf, err := pool.Get(ctx)
	if err != nil {
		return Stats{}, err
	}
	defer pool.Put(buf)
	if len(q.Rows) > 0 {
		return readRows(ctx, r, q, buf[:q.bytes()])
	}
	p, err := o.readRun(ctx, r, buf, f.offset, f.length)
	if err != nil {
		return Stats{}, truncated(q.File, err)
	}
	for i := range f.requests {
		q := &f.requests[i]
		from := q.Offset - f.offset
		if err := q.To.Take(p[from : from+q.Width]); err != nil {
			return Stats{}, err
		}
	}
	return Stats{f.length, 1}, nil
}

// readRun reads one run into a buffer.
func (o *Options) readRun(ctx context.Context, r blob.Reader, buf []byte, off, n int64) ([]byte, error) {
	if o.Cached || n < largeBytes || n+slack > int64(len(buf)) {
		return buf[:n], r.ReadAt(ctx, buf[:n], off)
	}
	return blob.ReadLarge(ctx, r, buf, off, n)
}

// readRows reads the rows of a request one by one.
func readRows(ctx context.Context, r blob.Reader, q *Request, p []byte) (Stats, error) {
	n := q.rows()
	for i := range n {
		if err := r.ReadAt(ctx, p[i*q.Width:(i+1)*q.Width], q.Offset+RowOffset(q.Rows, i)); err != nil {
			return Stats{}, truncated(q.File, err)
		}
	}
	return Stats{q.bytes(), n}, q.To.Take(p)
}

// readInto reads a request into the memory that its bytes belong into. Bytes
// that are not cached come through a buffer, past the system's cache.
func (o *Options) readInto(ctx context.Context, r blob.Reader, q *Request, pool *bufpool.Pool) (Stats, error) {
	d, ok := r.(blob.DirectReader)
	if !ok || o.Cached || q.Width < largeBytes || min(q.Width, o.piece())+slack > int64(pool.Size()) {
		d = nil
	}
	var st Stats
	for at := int64(0); at < q.Width; {
		off := q.Offset + at
		p := q.Direct[at:]
		// Pieces end at blocks of the disk.
		if n := o.piece() - off%blob.Align; int64(len(p)) > n {
			p = p[:n]
		}
		var n int64
		var err error
		if d != nil && !d.Cached(off, int64(len(p))) {
			n, err = 1, o.copyPiece(ctx, d, q, p, off, pool)
		} else {
			n, err = o.readPiece(ctx, r, q, p, off)
		}
		if err != nil {
			return Stats{}, truncated(q.File, err)
		}
		st.Requests += n
		at += int64(len(p))
	}
	st.Bytes = q.Width
	return st, q.To.Take(q.Direct)
}

// copyPiece reads p through a buffer. The bytes are copied and checksummed while
// they are in the processor's cache.
func (o *Options) copyPiece(ctx context.Context, d blob.DirectReader, q *Request, p []byte, off int64, pool *bufpool.Pool) error {
	buf, err := pool.Get(ctx)
	if err != nil {
		return err
	}
	defer pool.Put(buf)
	from, err := d.ReadDirect(ctx, buf, off, int64(len(p)))
	if err != nil {
		return err
	}
	s, _ := q.To.(Stepper)
	for len(p) > 0 {
		n := copy(p[:min(stepBytes, len(p))], from)
		if s != nil {
			s.Step(p[:n])
		}
		p, from = p[n:], from[n:]
	}
	return nil
}

// copying bounds how many reads of the process copy from the system's cache at
// the same time: more of them than processors slow each other down.
var copying = semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0)))

// readPiece reads into p directly, in steps if the request has a function that
// looks at the bytes, and returns the number of reads.
func (o *Options) readPiece(ctx context.Context, r blob.Reader, q *Request, p []byte, off int64) (int64, error) {
	if _, ok := r.(blob.DirectReader); ok {
		if copying.Acquire(ctx, 1) != nil {
			return 0, context.Cause(ctx)
		}
		defer copying.Release(1)
	}
	s, inSteps := q.To.(Stepper)
	step := len(p)
	if inSteps && !o.Dear { // a request costs more than a cache miss
		step = stepBytes
	}
	var reads int64
	for len(p) > 0 {
		now := p[:min(step, len(p))]
		if err := r.ReadAt(ctx, now, off); err != nil {
			return reads, err
		}
		if inSteps {
			s.Step(now)
		}
		reads++
		p, off = p[len(now):], off+int64(len(now))
	}
	return reads, nil
}
