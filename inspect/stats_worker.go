package inspect

import (
	"context"
	"fmt"
)

// statsWorker is what one worker keeps between slabs.
type statsWorker struct {
	*statist
	buf    []byte
	blocks blocks
	first  momentVisitor
	counts []uint32
}

// pass1 does a slab of the first pass.
func (w *statsWorker) pass1(ctx context.Context, j job) error {
	it := w.items[j.item]
	if it.table {
		return w.tally(ctx, it, j)
	}
	w.first.start(w.opts.Buckets > 0 && w.opts.Log2)
	if err := w.visit(ctx, it, j, &w.first); err != nil {
		return err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	it.put(j.slab, w.first.sum.total())
	if w.first.octaves != nil {
		it.addOctaves(w.first.octaves)
	}
	if it.left--; it.left > 0 {
		return nil
	}
	it.total = it.sum.total()
	if !w.wantsLinear() || it.total.n == 0 {
		return nil
	}
	it.linear = newLinear(it.total.min, it.total.max, w.opts.Buckets)
	if it.entry.NumBytes() > int64(len(w.buf)) {
		it.second = true
		return nil
	}
	return w.blocks.each(it.entry.Tensor.DType, w.buf, linearVisitor{it.linear}) // all of it is still here
}

// tally does a slab of the first pass over a tensor with a table.
func (w *statsWorker) tally(ctx context.Context, it *statsItem, j job) error {
	d := it.entry.Tensor.DType
	n := 1 << (8 * d.Size())
	if w.counts == nil {
		w.counts = make([]uint32, 1<<16)
	}
	counts := w.counts[:n]
	clear(counts)
	err := w.parts(ctx, it, j, func(p []byte) error { return tally(d, p, counts) })
	if err != nil {
		return err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.values == nil {
		it.values = make([]int64, n)
	}
	for i, c := range counts {
		it.values[i] += int64(c)
	}
	if it.left--; it.left > 0 {
		return nil
	}
	return it.finish(&w.opts)
}

// pass2 does a slab of the second pass.
func (w *statsWorker) pass2(ctx context.Context, j job) error {
	it := w.items[j.item]
	mine := linearVisitor{it.linear.empty()}
	if err := w.visit(ctx, it, j, mine); err != nil {
		return err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	it.linear.add(mine.linear)
	return nil
}

// visit reads a slab and shows it to v in blocks.
func (w *statsWorker) visit(ctx context.Context, it *statsItem, j job, v visitor) error {
	return w.parts(ctx, it, j, func(p []byte) error { return w.blocks.each(it.entry.Tensor.DType, p, v) })
}

// parts reads a slab, in parts of whole blocks that fit the worker's buffer.
// Where there is one part, it stays in the buffer.
func (w *statsWorker) parts(ctx context.Context, it *statsItem, j job, do func(p []byte) error) error {
	size := int64(it.entry.Tensor.DType.Size())
	step := w.each / size / blockElements * blockElements
	for lo := j.lo; lo < j.hi; lo += step {
		hi := min(lo+step, j.hi)
		w.buf = grow(w.buf, (hi-lo)*size)
		if err := readFlat(ctx, w.src, it.entry, lo, hi, w.buf); err != nil {
			return err
		}
		w.opts.Progress(int64(len(w.buf)))
		if err := do(w.buf); err != nil {
			return fmt.Errorf("%q: %w", it.entry.FQN, err)
		}
	}
	return nil
}

// momentVisitor sums up blocks.
type momentVisitor struct {
	sum     pairwise
	octaves *octaves // nil: not wanted
	spare32 []float32
	spare64 []float64
}

func (m *momentVisitor) start(log2 bool) {
	m.sum = pairwise{m.sum.parts[:0], m.sum.levels[:0]}
	if log2 {
		m.octaves = new(octaves)
	}
}

func (m *momentVisitor) narrow(v []float32) {
	if m.spare32 == nil {
		m.spare32 = make([]float32, blockElements)
	}
	m.sum.add(momentsOf(v, m.spare32))
	if m.octaves != nil {
		countOctaves(m.octaves, v)
	}
}

func (m *momentVisitor) wide(v []float64) {
	if m.spare64 == nil {
		m.spare64 = make([]float64, blockElements)
	}
	m.sum.add(momentsOf(v, m.spare64))
	if m.octaves != nil {
		countOctaves(m.octaves, v)
	}
}

// linearVisitor fills a histogram.
type linearVisitor struct{ *linear }

func (l linearVisitor) narrow(v []float32) { countLinear(l.linear, v) }
func (l linearVisitor) wide(v []float64)   { countLinear(l.linear, v) }
