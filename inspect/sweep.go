package inspect

import (
	"context"
	"fmt"
	"iter"
	"math"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// slabBytes is the approximate number of bytes of a tensor that a worker reads at
// once. Tests make it smaller.
var slabBytes int64 = 16 << 20

const (
	// blockElements is the number of elements that loops process together, so
	// that they stay in the CPU caches.
	blockElements = 8192
	// minBuffer holds a block of the widest elements for two sides.
	minBuffer = 2 * blockElements * 16
)

// job is a slab of a tensor: the elements [lo, hi) in row-major order. An object
// is one slab without elements.
type job struct {
	item   int
	slab   int
	lo, hi int64
}

// workers returns the number of workers and the bytes that each may hold. A small
// budget reduces the number of workers before it reduces the size of reads.
func workers(parallel int, buffer int64) (n int, each int64) {
	if parallel <= 0 {
		parallel = max(2, runtime.GOMAXPROCS(0))
	}
	if buffer <= 0 {
		buffer = max(256<<20, int64(parallel)*slabBytes)
	}
	n = int(max(1, min(int64(parallel), buffer/slabBytes)))
	return n, max(minBuffer, min(buffer/int64(n), slabBytes))
}

// sweep runs all jobs on n workers. Jobs start in order. start returns the state
// of a worker.
func sweep[W any](ctx context.Context, n int, jobs iter.Seq[job], start func() W, do func(context.Context, W, job) error) error {
	g, ctx := errgroup.WithContext(ctx)
	queue := make(chan job)
	g.Go(func() error {
		defer close(queue)
		for j := range jobs {
			select {
			case queue <- j:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for range n {
		g.Go(func() error {
			w := start()
			for j := range queue {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err := do(ctx, w, j); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
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
			if !yield(job{item, i, lo, min(lo+slab, elements)}) {
				return
			}
		}
	}
}

// readFlat reads the elements [lo, hi) of a tensor in row-major order into buf,
// which has exactly their size.
func readFlat(ctx context.Context, src Content, e *meta.Entry, lo, hi int64, buf []byte) error {
	boxes, err := tensor.FlatBoxes(e.Tensor.Shape, lo, hi)
	if err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	for _, box := range boxes {
		n := box.Volume() * int64(e.Tensor.DType.Size())
		dst, err := tensor.FromBytes(e.Tensor.DType, box.Sizes, buf[:n])
		if err != nil {
			return fmt.Errorf("%q: %w", e.FQN, err)
		}
		if err := src.ReadEntry(ctx, e, box, dst); err != nil {
			return err
		}
		buf = buf[n:]
	}
	return nil
}

// grow returns a buffer of n bytes, reusing buf if it is large enough.
func grow(buf []byte, n int64) []byte {
	if int64(cap(buf)) < n {
		return make([]byte, n)
	}
	return buf[:n]
}

// visitor receives the elements of a tensor in blocks of numbers, which are exact
// if possible. Blocks are valid during the call only.
type visitor interface {
	narrow(v []float32)
	wide(v []float64)
}

// blocks turns the bytes of tensors into blocks of numbers. It has buffers, so
// only one goroutine may use it.
type blocks struct {
	narrow []float32
	wide   []float64
}

// each passes the elements in p, which is aligned, to v: floats of up to four
// bytes and integers of up to two as float32, complex numbers as their magnitude.
func (b *blocks) each(d tensor.DType, p []byte, v visitor) error {
	step := blockElements * d.Size()
	for len(p) > 0 {
		n := min(step, len(p))
		if err := b.one(d, p[:n], v); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (b *blocks) one(d tensor.DType, p []byte, v visitor) error {
	switch d {
	case tensor.Float32:
		x, err := valuesOf[float32](d, p)
		if err == nil {
			v.narrow(x)
		}
		return err
	case tensor.Float64:
		x, err := valuesOf[float64](d, p)
		if err == nil {
			v.wide(x)
		}
		return err
	case tensor.Complex64, tensor.Complex128:
		x, err := b.magnitudes(d, p)
		if err == nil {
			v.wide(x)
		}
		return err
	}
	if d.Size() <= 2 {
		x, err := b.float32s(d, p)
		if err == nil {
			v.narrow(x)
		}
		return err
	}
	x, err := b.float64s(d, p)
	if err == nil {
		v.wide(x)
	}
	return err
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

func (b *blocks) float32s(d tensor.DType, p []byte) ([]float32, error) {
	if b.narrow == nil {
		b.narrow = make([]float32, blockElements)
	}
	return converted(d, p, b.narrow)
}

func (b *blocks) float64s(d tensor.DType, p []byte) ([]float64, error) {
	if b.wide == nil {
		b.wide = make([]float64, blockElements)
	}
	return converted(d, p, b.wide)
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

// magnitudes returns the absolute values of complex numbers.
func (b *blocks) magnitudes(d tensor.DType, p []byte) ([]float64, error) {
	if b.wide == nil {
		b.wide = make([]float64, blockElements)
	}
	if d == tensor.Complex64 {
		x, err := valuesOf[complex64](d, p)
		for i, c := range x {
			b.wide[i] = math.Hypot(float64(real(c)), float64(imag(c)))
		}
		return b.wide[:len(x)], err
	}
	x, err := valuesOf[complex128](d, p)
	for i, c := range x {
		b.wide[i] = math.Hypot(real(c), imag(c))
	}
	return b.wide[:len(x)], err
}
