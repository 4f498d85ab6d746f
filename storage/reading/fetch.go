package reading

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
)

// Request is a read of one contiguous range of a file, or of rows of equal width.
type Request struct {
	File   string
	Offset int64
	Width  int64
	// Rows are the axes along which rows of Width bytes repeat, the outermost axis
	// first. Empty: the request is one range of Width bytes.
	Rows []Axis
	// Direct is the memory that the range is read into. It needs Rows to be empty.
	// Nil: the request is read into a buffer.
	Direct []byte
	// Weight is what FetchOptions.Done receives when the request is finished.
	Weight int64
	// To receives the bytes.
	To Sink
}

// Axis is one dimension of the rows of a request: the number of rows, and
// the distance between them in bytes.
type Axis struct{ Count, Pitch int64 }

// rowOffset returns the distance in bytes between the first row and row i.
func rowOffset(axes []Axis, i int64) int64 {
	at := int64(0)
	for d := len(axes) - 1; d >= 0; d-- {
		at += i % axes[d].Count * axes[d].Pitch
		i /= axes[d].Count
	}
	return at
}

// Sink receives the bytes of a request.
type Sink interface {
	// Take is called once, with all bytes of the request. p holds the rows one after
	// the other, or is Direct. Take must not keep p.
	Take(p []byte) error
}

// Stepper is a Sink that can compute checksums while a Direct request is read. Step is
// called with consecutive pieces of the bytes while they are in the processor's cache,
// and Take after that.
type Stepper interface {
	Sink
	Step(p []byte)
}

func (q *Request) rows() int64 {
	n := int64(1)
	for _, a := range q.Rows {
		n *= a.Count
	}
	return n
}

// bytes returns the number of bytes that the request reads.
func (q *Request) bytes() int64 { return q.Width * q.rows() }

// plain reports whether the request is one range that is read into a buffer.
func (q *Request) plain() bool { return q.Direct == nil && len(q.Rows) == 0 }

// FetchOptions change how requests are carried out.
type FetchOptions struct {
	// Open opens a file. Fetch opens each file once and closes it after its last
	// request.
	Open func(ctx context.Context, name string) (blob.Reader, error)
	storage.ReadOptions
	// Gap is the largest hole between two requests that is read rather than skipped.
	Gap int64
	// Cached means that all reads use the operating system's cache and leave their
	// bytes there. Otherwise, large reads bypass the cache if the bytes are not in it.
	Cached bool
	// Dear means that a request to the store is expensive compared with the bytes that
	// it reads. Neighbours of up to maxBytes in total are then read at once.
	Dear bool
	// Done, if not nil, receives the weights of finished requests, from several
	// goroutines at once.
	Done func(weight int64)
}

// maxBytes is the largest number of bytes that a request should have.
const maxBytes = 8 << 20

const (
	// joinBytes bounds the total size of neighbours that are read at once, unless
	// FetchOptions.Dear is set. That many bytes stay in the processor's cache.
	joinBytes = 1 << 20
	// stepBytes is the number of bytes that Stepper.Step gets at once.
	stepBytes = 256 << 10
	// largeBytes is the size from which a read bypasses the operating system's cache
	// if the bytes are not in it.
	largeBytes = 256 << 10
	// pieceBytes is the number of bytes of a Direct request that are read at once.
	// Reads that bypass the operating system's cache need an aligned buffer, from which
	// the bytes are copied.
	pieceBytes = 4 << 20
)

// piece returns the number of bytes of a Direct request that are read at once. They
// fit into one buffer within the budget.
func (o *FetchOptions) piece() int64 {
	n := int64(pieceBytes)
	for n > largeBytes && n+slack > o.Budget() {
		n /= 2
	}
	return n
}

// slack is the additional size of a buffer for a read that bypasses the operating
// system's cache. Such a read takes whole blocks of the disk, and the range may begin
// and end inside of blocks.
const slack = 2 * blob.Align

type fetchStats struct{ Bytes, Requests int64 }

// Fetch carries out the requests. It sorts the slice by file and offset. When it
// returns nil, the Sink of every request has received its bytes. A read beyond the end
// of a file is an error that wraps storage.ErrCorrupt.
func Fetch(ctx context.Context, requests []Request, o FetchOptions) (fetchStats, error) {
	fetches := o.plan(requests)
	defer closeAll(fetches)
	workers := o.Workers()
	pool := o.buffers(fetches, int64(workers))
	var bytes, count atomic.Int64
	err := work.Each(ctx, len(fetches), workers, func(ctx context.Context, i int) error {
		n, err := o.carryOut(ctx, &fetches[i], pool)
		bytes.Add(n.Bytes)
		count.Add(n.Requests)
		if err == nil && o.Done != nil {
			o.Done(fetches[i].weight())
		}
		return err
	})
	return fetchStats{bytes.Load(), count.Load()}, err
}

// fetch is one read by one worker. It serves a single request, or several small
// neighbours.
type fetch struct {
	requests []Request
	offset   int64
	length   int64 // of the range that covers all requests; not used for rows
	file     *openFile
}

// buffered returns the size of the buffer that the fetch needs.
func (o *FetchOptions) buffered(f *fetch) int64 {
	q := &f.requests[0]
	switch {
	case q.Direct != nil && (o.Cached || q.Width < largeBytes):
		return 0
	case q.Direct != nil:
		return min(q.Width, o.piece())
	case len(q.Rows) > 0:
		return q.bytes()
	}
	return f.length
}

func (f *fetch) weight() int64 {
	var n int64
	for i := range f.requests {
		n += f.requests[i].Weight
	}
	return n
}

// buffers returns the buffers for the fetches, within the budget. It rounds their size
// up to a power of two, so that later loads can reuse them.
func (o *FetchOptions) buffers(fetches []fetch, workers int64) *work.Pool {
	size := int64(blob.Align)
	for i := range fetches {
		for size < o.buffered(&fetches[i]) {
			size *= 2
		}
	}
	if size >= largeBytes && size+slack <= o.Budget() {
		size += slack
	}
	return work.NewPool(int(size), min(o.Budget(), workers*size), 1)
}

// plan sorts the requests by file and offset and joins small neighbours.
func (o *FetchOptions) plan(requests []Request) []fetch {
	slices.SortStableFunc(requests, func(x, y Request) int {
		return cmp.Or(strings.Compare(x.File, y.File), cmp.Compare(x.Offset, y.Offset))
	})
	var out []fetch
	var file *openFile
	for i := 0; i < len(requests); {
		q := &requests[i]
		if file == nil || file.name != q.File {
			file = &openFile{name: q.File}
		}
		n, end := o.neighbours(requests[i:])
		file.left.Add(1)
		out = append(out, fetch{requests: requests[i : i+n], offset: q.Offset, length: end - q.Offset, file: file})
		i += n
	}
	return out
}

// neighbours returns how many of the first requests are read as one, and the offset of
// the end of their bytes.
func (o *FetchOptions) neighbours(requests []Request) (int, int64) {
	q := &requests[0]
	end := q.Offset + q.Width
	if !q.plain() {
		return 1, end
	}
	most := int64(joinBytes)
	if o.Dear {
		most = maxBytes
	}
	most = min(most, max(o.Budget(), blob.Align))
	n := 1
	for ; n < len(requests); n++ {
		r := &requests[n]
		if r.File != q.File || !r.plain() || r.Offset > end+o.Gap {
			break
		}
		if max(end, r.Offset+r.Width)-q.Offset > most {
			break
		}
		end = max(end, r.Offset+r.Width)
	}
	return n, end
}

// truncated returns an error that wraps storage.ErrCorrupt if err reports a read
// beyond the end of a file. Otherwise it returns err.
func truncated(name string, err error) error {
	if errors.Is(err, blob.ErrRange) {
		return fmt.Errorf("%w: %s is cut short: %w", storage.ErrCorrupt, name, err)
	}
	return err
}

// openFile is a data file, opened by the first fetch that needs it and closed
// after the last.
type openFile struct {
	name string
	left atomic.Int64
	mu   sync.Mutex
	r    blob.Reader // guarded by mu
}

func (f *openFile) open(ctx context.Context, o *FetchOptions) (blob.Reader, error) {
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

// closeAll closes the files that are still open after an error.
func closeAll(fetches []fetch) {
	for i := range fetches {
		fetches[i].file.close()
	}
}

// carryOut reads the bytes of one fetch and passes them to the sinks.
func (o *FetchOptions) carryOut(ctx context.Context, f *fetch, pool *work.Pool) (fetchStats, error) {
	r, err := f.file.open(ctx, o)
	if err != nil {
		return fetchStats{}, err
	}
	defer f.file.done()
	q := &f.requests[0]
	if q.Direct != nil {
		return o.readInto(ctx, r, q, pool)
	}
	buf, err := pool.Get(ctx)
	if err != nil {
		return fetchStats{}, err
	}
	defer pool.Put(buf)
	if len(q.Rows) > 0 {
		return readRows(ctx, r, q, buf[:q.bytes()])
	}
	p, err := o.readRun(ctx, r, buf, f.offset, f.length)
	if err != nil {
		return fetchStats{}, truncated(q.File, err)
	}
	for i := range f.requests {
		q := &f.requests[i]
		from := q.Offset - f.offset
		if err := q.To.Take(p[from : from+q.Width]); err != nil {
			return fetchStats{}, err
		}
	}
	return fetchStats{f.length, 1}, nil
}

// readRun reads n bytes from off. It returns them as a part of buf.
func (o *FetchOptions) readRun(ctx context.Context, r blob.Reader, buf []byte, off, n int64) ([]byte, error) {
	if o.Cached || n < largeBytes || n+slack > int64(len(buf)) {
		return buf[:n], r.ReadAt(ctx, buf[:n], off)
	}
	return blob.ReadLarge(ctx, r, buf, off, n)
}

// readRows reads the rows of a request one by one.
func readRows(ctx context.Context, r blob.Reader, q *Request, p []byte) (fetchStats, error) {
	n := q.rows()
	for i := range n {
		if err := r.ReadAt(ctx, p[i*q.Width:(i+1)*q.Width], q.Offset+rowOffset(q.Rows, i)); err != nil {
			return fetchStats{}, truncated(q.File, err)
		}
	}
	return fetchStats{q.bytes(), n}, q.To.Take(p)
}

// readInto reads a Direct request, piece by piece. If a piece is not in the operating
// system's cache, the read bypasses the cache and needs a buffer.
func (o *FetchOptions) readInto(ctx context.Context, r blob.Reader, q *Request, pool *work.Pool) (fetchStats, error) {
	d, ok := r.(blob.DirectReader)
	if !ok || o.Cached || q.Width < largeBytes || min(q.Width, o.piece())+slack > int64(pool.Size()) {
		d = nil
	}
	var st fetchStats
	for at := int64(0); at < q.Width; {
		off := q.Offset + at
		p := q.Direct[at:]
		// Each piece ends at the end of a disk block.
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
			return fetchStats{}, truncated(q.File, err)
		}
		st.Requests += n
		at += int64(len(p))
	}
	st.Bytes = q.Width
	return st, q.To.Take(q.Direct)
}

// copyPiece reads into a buffer, bypassing the operating system's cache, and copies the
// bytes to p in steps: Step gets them while they are in the processor's cache.
func (o *FetchOptions) copyPiece(ctx context.Context, d blob.DirectReader, q *Request, p []byte, off int64, pool *work.Pool) error {
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

// copying bounds the number of reads that copy from the operating system's cache at
// the same time, in the whole process. More of them than processors slow each other
// down.
var copying = semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0)))

// readPiece reads directly into p and returns the number of reads. If the sink is a
// Stepper, it reads in steps.
func (o *FetchOptions) readPiece(ctx context.Context, r blob.Reader, q *Request, p []byte, off int64) (int64, error) {
	if _, ok := r.(blob.DirectReader); ok {
		if copying.Acquire(ctx, 1) != nil {
			return 0, context.Cause(ctx)
		}
		defer copying.Release(1)
	}
	s, inSteps := q.To.(Stepper)
	step := len(p)
	if inSteps && !o.Dear { // if Dear, one more request costs more than the cache misses
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
