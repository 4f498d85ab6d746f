// Package fetch reads ranges of data files: in parallel, in the order in which
// they lie there, small neighbours together, within a budget of memory. It knows
// no format and nothing of what the bytes are. The contract is at Request and
// Run.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/storage"
)

// Request is one run of bytes of a file to be read, or rows of one width, and
// who takes them.
type Request struct {
	File   string
	Offset int64
	Width  int64
	// Rows says where rows of Width bytes begin, the outermost axis first. None:
	// the request is one run.
	Rows []Axis
	// Direct is the memory that the bytes of one run belong into as they are.
	// Nil: they are read into a buffer.
	Direct []byte
	// Weight is what the request counts for in Options.Done.
	Weight int64
	To     Sink
}

// Axis is one dimension of the rows of a request: how many there are, and how
// far they lie apart.
type Axis struct{ Count, Pitch int64 }

// RowOffset returns how far the i-th row of those axes lies from the first.
func RowOffset(axes []Axis, i int64) int64 {
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

// Stepper is a Sink that wishes to see the bytes of a Direct request in steps, in
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

// Options say how requests are carried out.
type Options struct {
	// Open opens a file. Each is opened once, and closed after its last request.
	Open func(ctx context.Context, name string) (blob.Reader, error)
	// BufferBytes bounds the memory for bytes on their way; one buffer for the
	// largest request is always taken. Zero: 1 GiB.
	BufferBytes int64
	// Parallel is the number of reads at the same time. Zero: 4, or one for each
	// processor if there are more.
	Parallel int
	// Gap is how many bytes between two requests are better read than skipped.
	Gap int64
	// Cached reads everything through the system's cache, and leaves it there.
	// Otherwise large reads go past the cache if the bytes are not in it.
	Cached bool
	// Dear says that a request costs more than the bytes it reads: as many
	// neighbours as fit MaxBytes are read at once.
	Dear bool
	// Done, if not nil, is told the weight of what is done, from several
	// goroutines at once.
	Done func(weight int64)
}

// MaxBytes is the largest single read that a request should ask for.
const MaxBytes = 8 << 20

const (
	// joinBytes is how much small neighbours make up at most, as a rule: what
	// stays in the processor's cache.
	joinBytes = 1 << 20
	// stepBytes is how much a Stepper sees at once.
	stepBytes = 256 << 10
	// largeBytes is the size from which on a read goes past the system's cache
	// if the bytes are not in it.
	largeBytes = 256 << 10
	// pieceBytes is how much is read past the system's cache at once, on the way
	// to memory of another alignment.
	pieceBytes = 4 << 20
)

// piece returns how many bytes of a Direct request are read at once: one buffer,
// within the budget.
func (o *Options) piece() int64 {
	n := int64(pieceBytes)
	for n > largeBytes && n+slack > Budget(o.BufferBytes) {
		n /= 2
	}
	return n
}

// slack is the extra room that a buffer needs for a read past the system's cache:
// the range may begin and end inside of blocks of the disk.
const slack = 2 * blob.Align

// Stats count what was read.
type Stats struct{ Bytes, Requests int64 }

// Run carries the requests out, and sorts them on the way. When it returns nil
// every request was taken. A read beyond the end of a file is an error that wraps
// storage.ErrCorrupt.
func Run(ctx context.Context, requests []Request, o Options) (Stats, error) {
	fetches := o.plan(requests)
	defer closeAll(fetches)
	workers := Workers(o.Parallel)
	pool := o.buffers(fetches, int64(workers))
	var bytes, count atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range fetches {
		if gctx.Err() != nil {
			break
		}
		g.Go(guard.Func(func() error {
			n, err := o.carryOut(gctx, &fetches[i], pool)
			bytes.Add(n.Bytes)
			count.Add(n.Requests)
			if err == nil && o.Done != nil {
				o.Done(fetches[i].weight())
			}
			return err
		}))
	}
	err := g.Wait()
	if err == nil {
		err = context.Cause(ctx) // cancelled is not done
	}
	return Stats{bytes.Load(), count.Load()}, err
}

// Workers returns how many reads are made at the same time for an option's
// value.
func Workers(parallel int) int {
	if parallel > 0 {
		return parallel
	}
	return max(4, runtime.GOMAXPROCS(0))
}

// Budget returns the bytes of buffers for an option's value.
func Budget(bytes int64) int64 {
	if bytes > 0 {
		return bytes
	}
	return 1 << 30
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
func (o *Options) buffered(f *fetch) int64 {
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
func (o *Options) buffers(fetches []fetch, workers int64) *bufpool.Pool {
	size := int64(blob.Align)
	for i := range fetches {
		for size < o.buffered(&fetches[i]) {
			size *= 2
		}
	}
	if size >= largeBytes && size+slack <= Budget(o.BufferBytes) {
		size += slack
	}
	return bufpool.New(int(size), min(Budget(o.BufferBytes), workers*size), 1)
}

// plan sorts the requests by their place and joins small neighbours.
func (o *Options) plan(requests []Request) []fetch {
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
func (o *Options) neighbours(requests []Request) (int, int64) {
	q := &requests[0]
	end := q.Offset + q.Width
	if !q.plain() {
		return 1, end
	}
	most := int64(joinBytes)
	if o.Dear {
		most = MaxBytes
	}
	most = min(most, max(Budget(o.BufferBytes), blob.Align))
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

// truncated says what a read beyond the end of a data file means.
func truncated(name string, err error) error {
	if errors.Is(err, blob.ErrRange) {
		return fmt.Errorf("%w: %s is cut short: %w", storage.ErrCorrupt, name, err)
	}
	return err
}
