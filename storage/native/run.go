package native

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

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/internal/progress"
	"github.com/cairn-ckpt/cairn/storage"
)

const (
	// directStep is how much is read into its place at once.
	directStep = 256 << 10
	// joinBytes is how much small neighbours make up at most, as a rule.
	joinBytes = 1 << 20
)

// fetch is what one worker reads at once: a single request, or small ones that
// lie side by side.
type fetch struct {
	requests []request
	offset   int64
	length   int64 // of the run that covers all requests; without meaning for one of several rows
	file     *openFile
}

// openFile is a data file, opened by the first fetch that needs it and closed
// after the last.
type openFile struct {
	name string
	left atomic.Int64
	mu   sync.Mutex
	r    blob.Reader // guarded by mu
}

// run carries the requests out.
func (b *batch) run(ctx context.Context, opts ReaderOptions, tell func(int64)) (storage.ReadStats, error) {
	fetches := b.plan()
	defer closeAll(fetches)
	workers := opts.Parallel
	if workers <= 0 {
		workers = max(4, runtime.GOMAXPROCS(0))
	}
	pool := buffersFor(fetches, opts.BufferBytes, int64(workers))
	told := &progress.Share{Tell: tell, Plan: b.stats.Needed, Total: b.stats.Rounded}
	var read, requests atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range fetches {
		if gctx.Err() != nil {
			break
		}
		g.Go(guard.Func(func() error {
			n, reqs, err := b.carryOut(gctx, &fetches[i], pool)
			read.Add(n)
			requests.Add(reqs)
			if err == nil {
				told.Add(fetches[i].rounded())
			}
			return err
		}))
	}
	err := g.Wait()
	if err == nil {
		err = context.Cause(ctx) // cancelled is not done
	}
	b.stats.Read, b.stats.Requests = read.Load(), requests.Load()
	return b.stats, err
}

// buffersFor returns the buffers for fetches within a budget. Their size is one
// of few, so that loads after this one find them useful too.
func buffersFor(fetches []fetch, budget, workers int64) *bufpool.Pool {
	size := int64(blob.Align)
	for i := range fetches {
		for size < fetches[i].buffered() {
			size *= 2
		}
	}
	return bufpool.New(int(size), min(budget, workers*size), 1)
}

// buffered returns how many bytes the fetch needs a buffer for.
func (f *fetch) buffered() int64 {
	q := &f.requests[0]
	switch {
	case q.direct != nil:
		return 0
	case q.rows > 1:
		return q.bytes()
	}
	return f.length
}

// rounded returns the bytes of the tiles that the fetch is for.
func (f *fetch) rounded() int64 {
	var n int64
	for i := range f.requests {
		n += f.requests[i].rounded
	}
	return n
}

// plan sorts the requests by their place and joins small neighbours.
func (b *batch) plan() []fetch {
	slices.SortStableFunc(b.requests, func(x, y request) int {
		return cmp.Or(strings.Compare(x.file, y.file), cmp.Compare(x.offset, y.offset))
	})
	var out []fetch
	var file *openFile
	for i := 0; i < len(b.requests); {
		q := &b.requests[i]
		if file == nil || file.name != q.file {
			file = &openFile{name: q.file}
		}
		j, end := b.neighbours(i)
		file.left.Add(1)
		out = append(out, fetch{requests: b.requests[i:j], offset: q.offset, length: end - q.offset, file: file})
		i = j
	}
	return out
}

// neighbours returns the end of the run of requests from i on that are read as
// one, and the end of their bytes.
func (b *batch) neighbours(i int) (int, int64) {
	q := &b.requests[i]
	end := q.offset + q.width
	if q.direct != nil || q.rows > 1 {
		return i + 1, end
	}
	j := i + 1
	for ; j < len(b.requests); j++ {
		n := &b.requests[j]
		if n.file != q.file || n.direct != nil || n.rows > 1 || n.offset > end+b.gap {
			break
		}
		if max(end, n.offset+n.width)-q.offset > b.joinBytes() {
			break
		}
		end = max(end, n.offset+n.width)
	}
	return j, end
}

// joinBytes returns how much small neighbours make up at most: what stays in
// the processor's cache, or more where requests are dear.
func (b *batch) joinBytes() int64 {
	if b.gap > 0 {
		return b.most
	}
	return joinBytes
}

// carryOut reads one fetch and hands its bytes over.
func (b *batch) carryOut(ctx context.Context, f *fetch, pool *bufpool.Pool) (read, requests int64, err error) {
	r, err := f.file.open(ctx, b.store)
	if err != nil {
		return 0, 0, err
	}
	defer f.file.done()
	if q := &f.requests[0]; q.direct != nil {
		return b.readDirect(ctx, r, q)
	}
	buf, err := pool.Get(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer pool.Put(buf)
	if q := &f.requests[0]; q.rows > 1 {
		p := buf[:q.bytes()]
		for i := range q.rows {
			if err := r.ReadAt(ctx, p[i*q.width:(i+1)*q.width], q.offset+i*q.pitch); err != nil {
				return 0, 0, truncated(err)
			}
		}
		return q.bytes(), q.rows, b.take(q, p)
	}
	p := buf[:f.length]
	if err := r.ReadAt(ctx, p, f.offset); err != nil {
		return 0, 0, truncated(err)
	}
	for i := range f.requests {
		q := &f.requests[i]
		from := q.offset - f.offset
		if err := b.take(q, p[from:from+q.width]); err != nil {
			return 0, 0, err
		}
	}
	return f.length, 1, nil
}

// readDirect reads into the memory that the bytes belong into, in steps that
// are checksummed while they are in the processor's cache.
func (b *batch) readDirect(ctx context.Context, r blob.Reader, q *request) (read, requests int64, err error) {
	sums := q.job.grid.newSums(q.span)
	if p, ok := r.(blob.Prefetcher); ok {
		p.Prefetch(q.offset, q.width) // the steps below look like random reads to the system
	}
	step := int64(directStep)
	if b.gap > 0 {
		step = q.width // a request costs more than a cache miss
	}
	for at := int64(0); at < q.width; at += step {
		p := q.direct[at:min(at+step, q.width)]
		if err := r.ReadAt(ctx, p, q.offset+at); err != nil {
			return 0, 0, truncated(err)
		}
		sums.add(p)
		requests++
	}
	return q.width, requests, b.settle(q, sums, q.direct)
}

// truncated says what a read beyond the end of a data file means.
func truncated(err error) error {
	if errors.Is(err, blob.ErrRange) {
		return fmt.Errorf("%w: a data file is cut short: %w", storage.ErrCorrupt, err)
	}
	return err
}

func (f *openFile) open(ctx context.Context, s blob.Store) (blob.Reader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.r != nil {
		return f.r, nil
	}
	r, err := s.Open(ctx, f.name)
	if err != nil {
		return nil, goneError(ctx, s, f.name, err)
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
