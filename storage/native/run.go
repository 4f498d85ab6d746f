package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/storage"
)

// fetch is what one worker reads at once: a single request, or small ones that
// lie side by side.
type fetch struct {
	requests []request
	offset   int64
	length   int64 // of the run that covers all requests; 0 for one of several rows
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
func (b *batch) run(ctx context.Context, opts ReaderOptions, progress func(int64)) (storage.ReadStats, error) {
	fetches := b.plan()
	workers := opts.Parallel
	if workers <= 0 {
		workers = max(4, runtime.GOMAXPROCS(0))
	}
	size := roundUp(b.largestBuffered(fetches), blob.Align)
	pool := bufpool.New(int(max(size, blob.Align)), min(opts.BufferBytes, int64(workers)*size), 1)
	var read, requests atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range fetches {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			n, reqs, err := b.carryOut(gctx, &fetches[i], pool)
			read.Add(n)
			requests.Add(reqs)
			if err == nil && progress != nil {
				progress(n)
			}
			return err
		})
	}
	err := g.Wait()
	if err == nil {
		err = context.Cause(ctx) // cancelled is not done
	}
	closeAll(fetches)
	b.stats.Read, b.stats.Requests = read.Load(), requests.Load()
	return b.stats, err
}

// plan sorts the requests by their place and joins small neighbours.
func (b *batch) plan() []fetch {
	slices.SortStableFunc(b.requests, func(x, y request) int {
		return cmp.Or(strings.Compare(x.file, y.file), cmp.Compare(x.offset, y.offset))
	})
	gap := int64(0)
	if g, ok := blob.As[blob.GapReader](b.store); ok {
		gap = g.ReadGap()
	}
	var out []fetch
	var file *openFile
	for i := 0; i < len(b.requests); {
		q := &b.requests[i]
		if file == nil || file.name != q.file {
			file = &openFile{name: q.file}
		}
		j, end := b.neighbours(i, gap)
		f := fetch{requests: b.requests[i:j], offset: q.offset, length: end - q.offset, file: file}
		if q.rows > 1 {
			f.length = 0
		}
		file.left.Add(1)
		out = append(out, f)
		i = j
	}
	return out
}

// neighbours returns the end of the run of requests from i on that are read as
// one, and the end of their bytes.
func (b *batch) neighbours(i int, gap int64) (int, int64) {
	q := &b.requests[i]
	end := q.offset + q.width
	if q.direct != nil || q.rows > 1 {
		return i + 1, end
	}
	j := i + 1
	for ; j < len(b.requests); j++ {
		n := &b.requests[j]
		if n.file != q.file || n.direct != nil || n.rows > 1 || n.offset > end+gap {
			break
		}
		if max(end, n.offset+n.width)-q.offset > readBytes {
			break
		}
		end = max(end, n.offset+n.width)
	}
	return j, end
}

// largestBuffered returns the largest number of bytes that a fetch needs a
// buffer for.
func (b *batch) largestBuffered(fetches []fetch) int64 {
	var most int64
	for i := range fetches {
		if f := &fetches[i]; f.requests[0].direct == nil {
			most = max(most, f.length, f.requests[0].bytes())
		}
	}
	return most
}

// carryOut reads one fetch and hands its bytes over.
func (b *batch) carryOut(ctx context.Context, f *fetch, pool *bufpool.Pool) (read, requests int64, err error) {
	r, err := f.file.open(ctx, b.store)
	if err != nil {
		return 0, 0, err
	}
	defer f.file.done()
	if q := &f.requests[0]; q.direct != nil {
		if err := r.ReadAt(ctx, q.direct, q.offset); err != nil {
			return 0, 0, truncated(err)
		}
		return q.width, 1, b.take(q, q.direct)
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
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: data file %s is gone: %w", storage.ErrCorrupt, f.name, err)
	}
	f.r = r
	return r, err
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
