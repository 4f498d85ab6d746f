package inspect

import (
	"context"
	"fmt"
	"iter"
	"math"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// slabBytes is the number of bytes of tensors that a worker reads at once. Tests
// make it smaller.
var slabBytes int64 = 16 << 20

// blockElements is the number of elements that loops process together, so that
// they stay in the CPU caches.
const blockElements = 8192

// job is a slab of a tensor: the elements [lo, hi) in row-major order. An object
// is one slab without elements.
type job struct {
	item   int
	slab   int
	lo, hi int64
	// together is the number of items, from item on, that are read together. Each of them is
	// one slab. Zero: the job is one slab of one item.
	together int
}

// workers returns the number of jobs that run at the same time.
func workers() int { return max(2, runtime.GOMAXPROCS(0)) }

// sweep runs all jobs. A job has a W to itself while it runs.
func sweep[W any](ctx context.Context, jobs iter.Seq[job], do func(context.Context, *W, job) error) error {
	return sweepBy(ctx, workers(), jobs, do)
}

// sweepBy is sweep with so many jobs at the same time.
func sweepBy[W any](ctx context.Context, workers int, jobs iter.Seq[job], do func(context.Context, *W, job) error) error {
	pool := sync.Pool{New: func() any { return new(W) }}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for j := range jobs {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			w := pool.Get().(*W)
			defer pool.Put(w)
			return do(gctx, w, j)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx) // cancelled is not done
}

// slabElements returns the number of elements in a slab of at most the given
// bytes: whole rows or matrices if they fit. It depends only on the shape and the
// size of an element, so that sums over slabs do not depend on anything else.
func slabElements(shape []int64, size, bytes int64) int64 {
	most := bytes / size
	row := int64(1)
	for d := len(shape) - 1; d >= 0 && shape[d] > 0 && row <= most/shape[d]; d-- {
		row *= shape[d]
	}
	return most / row * row
}

// slabs yields the slabs of a tensor.
func slabs(item int, elements, slab int64) iter.Seq[job] {
	return func(yield func(job) bool) {
		for i, lo := 0, int64(0); lo < elements; i, lo = i+1, lo+slab {
			if !yield(job{item: item, slab: i, lo: lo, hi: min(lo+slab, elements)}) {
				return
			}
		}
	}
}

// readFlat reads the elements [lo, hi) of a tensor in row-major order into buf,
// which has exactly their size.
func readFlat(ctx context.Context, read readEntry, e *meta.Entry, lo, hi int64, buf []byte) error {
	return readBoxes(e, e.Tensor.Shape, e.Tensor.DType, lo, hi, buf, func(box tensor.Box, dst *tensor.Tensor) error {
		return read(ctx, e, box, dst)
	})
}

// readEntry is Content.ReadEntry.
type readEntry = func(ctx context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error

// readBoxes calls read for boxes of a shape that together are its elements [lo, hi)
// in row-major order. The destinations are consecutive parts of buf.
func readBoxes(e *meta.Entry, shape []int64, d tensor.DType, lo, hi int64, buf []byte, read func(box tensor.Box, dst *tensor.Tensor) error) error {
	boxes, err := tensor.FlatBoxes(shape, lo, hi)
	if err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	for _, box := range boxes {
		n := box.Volume() * int64(d.Size())
		dst, err := tensor.FromBytes(d, box.Sizes, buf[:n])
		if err != nil {
			return fmt.Errorf("%q: %w", e.FQN, err)
		}
		if err := read(box, dst); err != nil {
			return err
		}
		buf = buf[n:]
	}
	return nil
}

const (
	// smallBytes is the size up to which tensors are read together, because a
	// read of its own would cost more than the bytes.
	smallBytes = 64 << 10
	// maxTogether is the largest number of tensors that are read together.
	maxTogether = 4096
	// aligned is a multiple of the alignments of all elements.
	aligned = 16
)

// small returns how many of the first n items are small, and not more than room together.
// size returns the bytes of an item, and whether it may be read with others.
func small(n int, room int64, size func(i int) (bytes int64, ok bool)) int {
	for i := range min(n, maxTogether) {
		bytes, ok := size(i)
		if !ok || bytes > min(smallBytes, room) {
			return i
		}
		room -= bytes
	}
	return min(n, maxTogether)
}

// readTogether reads whole tensors. It returns the bytes of each, which are aligned parts of
// a buffer, and the buffer, which is buf if that is large enough.
func readTogether(ctx context.Context, src Content, entries []*meta.Entry, buf []byte) (parts [][]byte, used []byte, err error) {
	var total int64
	for _, e := range entries {
		total += (e.NumBytes() + aligned - 1) / aligned * aligned
	}
	buf = grow(buf, total)
	parts, dst := make([][]byte, len(entries)), make([]*tensor.Tensor, len(entries))
	at := int64(0)
	for i, e := range entries {
		n := e.NumBytes()
		parts[i] = buf[at : at+n : at+n]
		if dst[i], err = tensor.FromBytes(e.Tensor.DType, e.Tensor.Shape, parts[i]); err != nil {
			return nil, buf, fmt.Errorf("%q: %w", e.FQN, err)
		}
		at += (n + aligned - 1) / aligned * aligned
	}
	return parts, buf, src.ReadEntries(ctx, entries, dst)
}

// grow returns a buffer of n bytes, reusing buf if it is large enough.
func grow(buf []byte, n int64) []byte {
	if int64(cap(buf)) < n {
		return make([]byte, n)
	}
	return buf[:n]
}

// blocks turns the bytes of tensors into numbers. It has buffers, so only one
// goroutine may use it.
type blocks struct {
	floats  []float64
	complex []complex128
}

// each calls fn with the elements in p, which is aligned, a block at a time: exactly
// if float64 can hold them, complex numbers as their magnitude. The slice is valid
// during the call only.
func (b *blocks) each(d tensor.DType, p []byte, fn func(v []float64)) error {
	if b.floats == nil {
		b.floats = make([]float64, blockElements)
	}
	for n := 0; len(p) > 0; p = p[n:] {
		n = min(blockElements*d.Size(), len(p))
		v, err := b.one(d, p[:n])
		if err != nil {
			return err
		}
		fn(v)
	}
	return nil
}

func (b *blocks) one(d tensor.DType, p []byte) ([]float64, error) {
	switch {
	case d == tensor.Float64:
		return valuesOf[float64](d, p)
	case !d.IsComplex():
		return converted(d, p, b.floats)
	}
	if b.complex == nil {
		b.complex = make([]complex128, blockElements)
	}
	x, err := converted(d, p, b.complex)
	for i, c := range x {
		b.floats[i] = math.Hypot(real(c), imag(c))
	}
	return b.floats[:len(x)], err
}

// valuesOf returns the elements in p without a copy.
func valuesOf[E tensor.Element](d tensor.DType, p []byte) ([]E, error) {
	t, err := flat(d, p)
	if err != nil {
		return nil, err
	}
	return tensor.Values[E](t)
}

// flat returns p as a tensor of one dimension.
func flat(d tensor.DType, p []byte) (*tensor.Tensor, error) {
	if d.Size() == 0 {
		return nil, fmt.Errorf("%w: %v", tensor.ErrDType, d)
	}
	return tensor.FromBytes(d, []int64{int64(len(p) / d.Size())}, p)
}

// converted returns the elements in p as values of another type, in the memory
// room.
func converted[E tensor.Element](d tensor.DType, p []byte, room []E) ([]E, error) {
	src, err := flat(d, p)
	if err != nil {
		return nil, err
	}
	out := room[:src.NumElements()]
	dst, err := tensor.Of(src.Shape(), out)
	if err != nil {
		return nil, err
	}
	return out, tensor.Convert(dst, src, tensor.CastAny)
}
