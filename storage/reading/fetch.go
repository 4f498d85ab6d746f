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
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
)

// Request is a read of one run of bytes of a file, or of rows of one width.
type Request struct {
	File   string
	Offset int64
	Width  int64
	// Rows are the axes of rows of Width bytes, the outermost axis first. Empty:
	// the request is one run.
	Rows []Axis
	// Direct is the memory that one run is read into. Nil: it is read into a
	// buffer.
	Direct []byte
	// Weight is the number that FetchOptions.Done receives for the request.
	Weight int64
	// To takes the bytes.
	To Sink
}

// Axis is one dimension of the rows of a request: the number of rows, and
// the distance between them in bytes.
type Axis struct{ Count, Pitch int64 }

// rowOffset returns the distance of the i-th row of those axes from the first.
func rowOffset(axes []Axis, i int64) int64 {
	at := int64(0)
	for d := len(axes) - 1; d >= 0; d-- {
		at += i % axes[d].Count * axes[d].Pitch
		i /= axes[d].Count
	}
	return at
}

// Sink takes the bytes of a request.
type Sink interface {
	// Take is called once, with all bytes of the request: the rows one after the
	// other, or Direct. It must not keep p.
	Take(p []byte) error
}

// Stepper is a Sink that sees the bytes of a Direct request in steps, in
// order, while they are in the processor's cache, before Take is called.
type Stepper interface {
	Sink
	Step(p []byte)
}

// rows returns the number of rows.
func (q *Request) rows() int64 {
	n := int64(1)
	for _, a := range q.Rows {
		n *= a.Count
	}
	return n
}

// bytes returns how much the request reads.
func (q *Request) bytes() int64 { return q.Width * q.rows() }

// plain reports whether the request is one run that goes through a buffer.
func (q *Request) plain() bool { return q.Direct == nil && len(q.Rows) == 0 }

// FetchOptions change how requests are carried out.
type FetchOptions struct {
	// Open opens a file. Each is opened once, and closed after its last request.
	Open func(ctx context.Context, name string) (blob.Reader, error)
	storage.ReadOptions
	// Gap is how many bytes between two requests are better read than skipped.
	Gap int64
	// Cached reads everything through the system's cache, and leaves it there.
	// Otherwise large reads go past the cache if the bytes are not in it.
	Cached bool
	// Dear means that a request costs more than the bytes it reads: neighbours of
	// up to maxBytes in sum are read at once.
	Dear bool
	// Done, if not nil, receives the weights of finished requests, from several
	// goroutines at once.
	Done func(weight int64)
}

// maxBytes is the largest single read that a request should ask for.
const maxBytes = 8 << 20

const (
	// joinBytes bounds small neighbours that are read at once, unless requests are
	// dear: this much stays in the processor's cache.
	joinBytes = 1 << 20
	// stepBytes is how many bytes a Stepper sees at once.
	stepBytes = 256 << 10
	// largeBytes is the size from which a read goes past the system's cache
	// if the bytes are not in it.
	largeBytes = 256 << 10
	// pieceBytes is how many bytes are read past the system's cache at once, on the way
	// to memory of another alignment.
	pieceBytes = 4 << 20
)

// piece returns how many bytes of a Direct request are read at once: one buffer,
// within the budget.
func (o *FetchOptions) piece() int64 {
	n := int64(pieceBytes)
	for n > largeBytes && n+slack > o.Budget() {
		n /= 2
	}
	return n
}

// slack is the extra room that a buffer needs for a read past the system's cache:
// the range may begin and end inside of blocks of the disk.
const slack = 2 * blob.Align

// fetchStats count what was read.
type fetchStats struct{ Bytes, Requests int64 }

// Fetch carries the requests out, and sorts them on the way. When it returns nil
// every request was taken. A read beyond the end of a file is an error that wraps
// storage.ErrCorrupt.
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

// fetch is what one worker reads at once: a single request, or small ones that
// lie side by side.
type fetch struct {
	requests []Request
	offset   int64
	length   int64 // of the run that covers all requests; without meaning for rows
	file     *openFile
}

// buffered returns how many bytes the fetch needs a buffer for.
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

// buffers returns the buffers for fetches within the budget. Their size is one
// of few, so that loads after this one find them useful too.
func (o *FetchOptions) buffers(fetches []fetch, workers int64) *bufpool.Pool {
	size := int64(blob.Align)
	for i := range fetches {
		for size < o.buffered(&fetches[i]) {
			size *= 2
		}
	}
	if size >= largeBytes && size+slack <= o.Budget() {
		size += slack
	}
	return bufpool.New(int(size), min(o.Budget(), workers*size), 1)
}

// plan sorts the requests by their place and joins small neighbours.
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

// neighbours returns how many of the requests are read as one, and the end of
// their bytes.
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

// truncated makes the error of a read beyond the end of a file one that wraps
// storage.ErrCorrupt.
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

// closeAll closes the files of a run that ended early.
func closeAll(fetches []fetch) {
	for i := range fetches {
		fetches[i].file.close()
	}
}

// carryOut reads one fetch and hands its bytes over.
func (o *FetchOptions) carryOut(ctx context.Context, f *fetch, pool *bufpool.Pool) (fetchStats, error) {
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

// readRun reads one run into a buffer.
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

// readInto reads a request into the memory that its bytes belong into. Bytes
// that are not cached come through a buffer, past the system's cache.
func (o *FetchOptions) readInto(ctx context.Context, r blob.Reader, q *Request, pool *bufpool.Pool) (fetchStats, error) {
	d, ok := r.(blob.DirectReader)
	if !ok || o.Cached || q.Width < largeBytes || min(q.Width, o.piece())+slack > int64(pool.Size()) {
		d = nil
	}
	var st fetchStats
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
			return fetchStats{}, truncated(q.File, err)
		}
		st.Requests += n
		at += int64(len(p))
	}
	st.Bytes = q.Width
	return st, q.To.Take(q.Direct)
}

// copyPiece reads p through a buffer. The bytes are copied and checksummed while
// they are in the processor's cache.
func (o *FetchOptions) copyPiece(ctx context.Context, d blob.DirectReader, q *Request, p []byte, off int64, pool *bufpool.Pool) error {
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
func (o *FetchOptions) readPiece(ctx context.Context, r blob.Reader, q *Request, p []byte, off int64) (int64, error) {
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
