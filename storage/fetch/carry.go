package fetch

import (
	"context"
	"sync"
	"sync/atomic"

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
		return o.readDirect(ctx, r, q)
	}
	buf, err := pool.Get(ctx)
	if err != nil {
		return Stats{}, err
	}
	defer pool.Put(buf)
	if len(q.Rows) > 0 {
		return readRows(ctx, r, q, buf[:q.bytes()])
	}
	p := buf[:f.length]
	if f.length >= ahead {
		prefetch(r, f.offset, f.length)
	}
	if err := r.ReadAt(ctx, p, f.offset); err != nil {
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

// readDirect reads into the memory that the bytes belong into.
func (o *Options) readDirect(ctx context.Context, r blob.Reader, q *Request) (Stats, error) {
	s, inSteps := q.To.(Stepper)
	step := q.Width
	if inSteps && !o.Dear { // a request costs more than a cache miss
		step = stepBytes
	}
	if step < q.Width || q.Width >= ahead { // steps look like random reads to the system
		prefetch(r, q.Offset, q.Width)
	}
	var st Stats
	for at := int64(0); at < q.Width; at += step {
		p := q.Direct[at:min(at+step, q.Width)]
		if err := r.ReadAt(ctx, p, q.Offset+at); err != nil {
			return Stats{}, truncated(q.File, err)
		}
		if inSteps {
			s.Step(p)
		}
		st.Requests++
	}
	st.Bytes = q.Width
	return st, q.To.Take(q.Direct)
}

// prefetch begins to fetch a run ahead of its use, where the reader can.
func prefetch(r blob.Reader, off, n int64) {
	if p, ok := r.(blob.Prefetcher); ok {
		p.Prefetch(off, n)
	}
}
