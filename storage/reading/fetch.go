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
	// Weight is the argument of FetchOptions.Done when the request is finished.
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

// Renewer is a Sink with checksums of its own, which can take the bytes of another copy.
type Renewer interface {
	Sink
	// Renew forgets the bytes so far. It returns false if Take has found them good: then its
	// error has another cause.
	Renew() bool
}

func (q *Request) rows() int64 {
	n := int64(1)
	for _, a := range q.Rows {
		n *= a.Count
	}
	return n
}

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
	// Slow means that a request to the store takes long compared with the bytes that it
	// reads. Neighbours of up to maxBytes in total are then read at once.
	Slow bool
	// Done, if not nil, receives the weights of finished requests, from several
	// goroutines at once.
	Done func(weight int64)
}

// maxBytes is the largest number of bytes that a request should have.
const maxBytes = 8 << 20

const (
	// joinBytes bounds the total size of neighbours that are read at once, unless
	// FetchOptions.Slow is set. That many bytes stay in the processor's cache.
	joinBytes = 1 << 20
	// stepBytes is the number of bytes that Stepper.Step gets at once.
	stepBytes = 256 << 10
	// largeBytes is the size from which a read bypasses the operating system's cache
	// if the bytes are not in it.
	largeBytes = 256 << 10
	// pieceBytes is the number of bytes of a Direct request that are read at once.
	// Reads that bypass the operating system's cache need an aligned buffer, from which
	// the bytes are copied.
	pieceBytes = 8 << 20
	// slack is the additional size of a buffer for a read that bypasses the operating
	// system's cache. Such a read takes whole blocks of the disk, and the range may begin
	// and end inside blocks.
	slack = 2 * blob.Align
)

// Counter is a reader of a file that is stored in another form. The bytes that it has read
// count, rather than the bytes that it has returned.
type Counter interface {
	blob.Reader
	BytesRead() int64
}

// asCounter returns r as a Counter.
func asCounter(r blob.Reader) (Counter, bool) {
	c, ok := ofStore(r).(Counter)
	return c, ok
}

// ofStore returns the reader of the store, with its capabilities.
func ofStore(r blob.Reader) blob.Reader {
	if k, ok := r.(*knownReader); ok {
		return k.Reader
	}
	return r
}

type fetchStats struct{ Bytes, Requests int64 }

// Fetch carries out the requests. It sorts the slice by file and offset. When it
// returns nil, the Sink of every request has received its bytes. A read beyond the end
// of a file is an error that wraps storage.ErrCorrupt.
func Fetch(ctx context.Context, requests []Request, o FetchOptions) (fetchStats, error) {
	f := &fetcher{FetchOptions: o, piece: pieceBytes}
	for f.piece > largeBytes && f.piece+slack > o.Budget() {
		f.piece /= 2
	}

	reads := f.plan(requests)
	f.pool = f.buffers(reads)
	err := work.Each(ctx, len(reads), o.Workers(), func(ctx context.Context, i int) error {
		r := &reads[i]
		if err := f.carryOut(ctx, r); err != nil {
			if errors.Is(err, blob.ErrRange) {
				err = fmt.Errorf("%w: %s is cut short: %w", storage.ErrCorrupt, r.file.name, err)
			}
			return err
		}

		if o.Done != nil {
			weight := int64(0)
			for i := range r.requests {
				weight += r.requests[i].Weight
			}
			o.Done(weight)
		}
		return nil
	})

	for i := range reads { // after an error, files are still open
		f.bytes.Add(reads[i].file.close())
	}

	return fetchStats{f.bytes.Load(), f.count.Load()}, err
}

// fetcher is the state of a call of Fetch.
type fetcher struct {
	FetchOptions
	piece int64 // bytes of a Direct request that are read at once; they fit into one buffer within the budget
	pool  *work.Pool

	bytes, count atomic.Int64 // of reads
}

// joined is one read by one worker: a single request, or several small neighbours.
type joined struct {
	requests []Request
	length   int64 // of the range that covers all requests; not used for rows
	file     *openFile
}

// buffered returns the size of the buffer that the read needs.
func (f *fetcher) buffered(r *joined) int64 {
	q := &r.requests[0]
	switch {
	case q.Direct != nil && (f.Cached || q.Width < largeBytes):
		return 0
	case q.Direct != nil:
		return min(q.Width, f.piece)
	case len(q.Rows) > 0:
		return q.Width * q.rows()
	}

	return r.length
}

// buffers returns the buffers for the reads, within the budget. It rounds their size
// up to a power of two, so that later loads can reuse them.
func (f *fetcher) buffers(reads []joined) *work.Pool {
	size := int64(blob.Align)
	for i := range reads {
		for size < f.buffered(&reads[i]) {
			size *= 2
		}
	}

	if size >= largeBytes && size+slack <= f.Budget() {
		size += slack
	}
	return work.NewPool(int(size), min(f.Budget(), int64(f.Workers())*size), 1)
}

// plan sorts the requests by file and offset and joins small neighbours.
func (f *fetcher) plan(requests []Request) []joined {
	slices.SortStableFunc(requests, func(x, y Request) int {
		return cmp.Or(strings.Compare(x.File, y.File), cmp.Compare(x.Offset, y.Offset))
	})
	var out []joined
	var file *openFile
	for len(requests) > 0 {
		q := &requests[0]
		if file == nil || file.name != q.File {
			file = &openFile{name: q.File}
		}
		n, end := f.neighbours(requests)
		file.left.Add(1)
		out = append(out, joined{requests[:n], end - q.Offset, file})
		requests = requests[n:]
	}

	return out
}

// neighbours returns how many of the first requests are read as one, and the offset of
// the end of their bytes.
func (f *fetcher) neighbours(requests []Request) (n int, end int64) {
	q := &requests[0]
	end = q.Offset + q.Width
	most := int64(joinBytes)
	if f.Slow {
		most = maxBytes
	}

	most = min(most, max(f.Budget(), blob.Align))
	for n = 1; n < len(requests) && q.plain(); n++ {
		r := &requests[n]
		next := max(end, r.Offset+r.Width)
		if r.File != q.File || !r.plain() || r.Offset > end+f.Gap || next-q.Offset > most {
			break
		}
		end = next
	}

	return n, end
}

// openFile is a data file, opened by the first read that needs it and closed
// after the last.
type openFile struct {
	name string
	left atomic.Int64
	mu   sync.Mutex
	r    blob.Reader // guarded by mu
}

func (f *openFile) open(ctx context.Context, o *FetchOptions) (r blob.Reader, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.r == nil {
		f.r, err = o.Open(ctx, f.name)
	}
	return f.r, err
}

// close closes the file and returns the bytes that a Counter has read.
func (f *openFile) close() (read int64) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.r == nil {
		return 0
	}

	if c, ok := asCounter(f.r); ok {
		read = c.BytesRead()
	}

	f.r.Close()
	f.r = nil
	return read
}

// carryOut reads the bytes of r and passes them to the sinks.
func (f *fetcher) carryOut(ctx context.Context, r *joined) error {
	from, err := r.file.open(ctx, &f.FetchOptions)
	if err != nil {
		return err
	}

	defer func() {
		if r.file.left.Add(-1) == 0 {
			f.bytes.Add(r.file.close())
		}
	}()

	q := &r.requests[0]
	if q.Direct != nil {
		return f.readDirect(ctx, from, q)
	}

	buf, err := f.pool.Get(ctx)
	if err != nil {
		return err
	}
	defer f.pool.Put(buf)

	if len(q.Rows) > 0 {
		p := buf[:q.rows()*q.Width]
		return f.deliver(ctx, from, q, p, q.readRows(p, func(p []byte, off int64) error { return f.readAt(ctx, from, p, off) }))
	}

	p := buf[:r.length]
	if f.Cached || r.length < largeBytes || r.length+slack > int64(len(buf)) {
		err = f.readAt(ctx, from, p, q.Offset)
	} else {
		var large []byte
		if large, err = blob.ReadLarge(ctx, from, buf, q.Offset, r.length); err == nil {
			p = large
		}
		f.counted(from, r.length)
	}

	for i := range r.requests {
		at := r.requests[i].Offset - q.Offset
		if err := f.deliver(ctx, from, &r.requests[i], p[at:at+r.requests[i].Width], err); err != nil {
			return err
		}
	}

	return nil
}

// readRows reads the bytes of the request into p.
func (q *Request) readRows(p []byte, read func(p []byte, off int64) error) error {
	for i := range q.rows() {
		if err := read(p[i*q.Width:(i+1)*q.Width], q.Offset+rowOffset(q.Rows, i)); err != nil {
			return err
		}
	}
	return nil
}

// deliver passes the bytes p of a request, which were read with this error, to its sink. If
// they are damaged or could not be read, it reads them again from another copy of the file.
func (f *fetcher) deliver(ctx context.Context, from blob.Reader, q *Request, p []byte, err error) error {
	if err == nil {
		err = q.To.Take(p)
	}
	again, ok := q.To.(Renewer)
	if err == nil || !ok || !again.Renew() {
		return err
	}

	return blob.Reread(ctx, ofStore(from), err, func(read blob.ReadFunc) error {
		again.Renew()
		err := q.readRows(p, func(p []byte, off int64) error {
			f.counted(from, int64(len(p)))
			return read(ctx, p, off)
		})
		if err != nil {
			return err
		}
		return q.To.Take(p)
	})
}

// slow reports whether a request to r takes long compared with the bytes that it reads.
func (f *fetcher) slow(r blob.Reader) bool {
	_, slow := ofStore(r).(blob.GapReader)
	return slow || f.Slow
}

// readAt reads p from off and counts the read.
func (f *fetcher) readAt(ctx context.Context, r blob.Reader, p []byte, off int64) error {
	f.counted(r, int64(len(p)))
	return r.ReadAt(ctx, p, off)
}

// counted counts a read from r. The bytes of a Counter are counted when it is closed.
func (f *fetcher) counted(r blob.Reader, bytes int64) {
	if _, ok := asCounter(r); !ok {
		f.bytes.Add(bytes)
	}
	f.count.Add(1)
}

// readDirect reads a Direct request, piece by piece. If a piece is not in the operating
// system's cache, the read bypasses the cache and needs a buffer.
func (f *fetcher) readDirect(ctx context.Context, r blob.Reader, q *Request) error {
	d, ok := r.(blob.DirectReader)
	bypass := ok && !f.Cached && q.Width >= largeBytes && min(q.Width, f.piece)+slack <= int64(f.pool.Size())
	for p, off := q.Direct, q.Offset; len(p) > 0; {
		now := p
		if ok || !f.slow(r) { // otherwise one more request costs more than small pieces save
			now = p[:min(int64(len(p)), f.piece-off%blob.Align)] // each piece ends at the end of a disk block
		}

		read := f.readPiece
		if bypass && !d.Cached(off, int64(len(now))) {
			read = f.copyPiece
		}

		if err := read(ctx, r, q, now, off); err != nil {
			return f.deliver(ctx, r, q, q.Direct, err)
		}
		p, off = p[len(now):], off+int64(len(now))
	}

	return f.deliver(ctx, r, q, q.Direct, nil)
}

// bypassing bounds the number of reads that bypass the operating system's cache at the
// same time, in the whole process. Four of them keep a disk busy. More of them arrive in
// another order than the bytes have on the disk, and take more memory.
var bypassing = semaphore.NewWeighted(4)

// copyPiece reads into a buffer, bypassing the operating system's cache, and copies the
// bytes to p in steps: Step gets them while they are in the processor's cache.
func (f *fetcher) copyPiece(ctx context.Context, r blob.Reader, q *Request, p []byte, off int64) error {
	if bypassing.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}

	buf, err := f.pool.Get(ctx) // after Acquire: reads that wait take no memory
	if err != nil {
		bypassing.Release(1)
		return err
	}
	defer f.pool.Put(buf)

	from, err := r.(blob.DirectReader).ReadDirect(ctx, buf, off, int64(len(p)))
	bypassing.Release(1)
	if err != nil {
		return err
	}

	f.counted(r, int64(len(p)))
	s, inSteps := q.To.(Stepper)
	for to := range slices.Chunk(p, stepBytes) {
		from = from[copy(to, from):]
		if inSteps {
			s.Step(to)
		}
	}

	return nil
}

// copying bounds the number of reads that copy from the operating system's cache at
// the same time, in the whole process. If there are more of them than processors, they
// slow each other down.
var copying = semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0)))

// readPiece reads directly into p. If the sink is a Stepper, it reads in steps.
func (f *fetcher) readPiece(ctx context.Context, r blob.Reader, q *Request, p []byte, off int64) error {
	if _, ok := r.(blob.DirectReader); ok {
		if copying.Acquire(ctx, 1) != nil {
			return context.Cause(ctx)
		}
		defer copying.Release(1)
	}

	s, inSteps := q.To.(Stepper)
	step := len(p)
	if inSteps && !f.slow(r) { // if slow, one more request costs more than the cache misses
		step = stepBytes
	}

	for now := range slices.Chunk(p, step) {
		if err := f.readAt(ctx, r, now, off); err != nil {
			return err
		}
		if inSteps {
			s.Step(now)
		}
		off += int64(len(now))
	}

	return nil
}
