package inspect

import (
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// statsItem is a tensor on its way through Stats.
type statsItem struct {
	entry    *meta.Entry
	elements int64
	slab     int64 // elements of a slab
	table    bool  // see statsTable

	mu      sync.Mutex
	left    int64           // slabs; guarded by mu
	sum     pairwise        // of the slabs before next; guarded by mu
	next    int             // guarded by mu
	waiting map[int]moments // of slabs behind next; guarded by mu
	values  []int64         // guarded by mu; see statsTable
	octaves *octaves        // guarded by mu
	linear  *linear         // guarded by mu

	// Once no slab is left:
	total  moments
	second bool // linear has to be filled by a second pass
}

func newStatsItem(e *meta.Entry) (*statsItem, error) {
	t := e.Tensor
	elements, err := tensor.NumElements(t.Shape)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", e.FQN, err)
	}
	size := int64(t.DType.Size())
	if size == 0 {
		return nil, fmt.Errorf("%q: %w: %v", e.FQN, tensor.ErrDType, t.DType)
	}
	it := &statsItem{entry: e, elements: elements, slab: slabElements(t.Shape, size, slabBytes)}
	it.left = (elements + it.slab - 1) / it.slab
	it.table = size <= 2 && elements >= tableWorth
	return it, nil
}

// needsSecond reports whether the first pass left a histogram to be filled.
func (it *statsItem) needsSecond() bool { return it.second }

// put adds the moments of a slab. They are merged in the order of the slabs,
// whatever order they arrive in. The caller holds mu.
func (it *statsItem) put(slab int, m moments) {
	if it.waiting == nil {
		it.waiting = map[int]moments{}
	}
	it.waiting[slab] = m
	for {
		m, ok := it.waiting[it.next]
		if !ok {
			return
		}
		delete(it.waiting, it.next)
		it.sum.add(m)
		it.next++
	}
}

// addOctaves takes the counts of a slab. The caller holds mu.
func (it *statsItem) addOctaves(o *octaves) {
	if it.octaves == nil {
		it.octaves = new(octaves)
	}
	it.octaves.add(o)
}

func (it *statsItem) result(o *StatsOptions) TensorStats {
	t := it.entry.Tensor
	out := TensorStats{
		FQN: it.entry.FQN, DType: t.DType.String(), Shape: append([]int64{}, t.Shape...), NumBytes: it.entry.NumBytes(),
		Numbers: newNumbers(it.total),
	}
	switch {
	case it.octaves != nil:
		out.Histogram = it.octaves.histogram(o.Buckets)
	case it.linear != nil:
		out.Histogram = it.linear.histogram()
	}
	return out
}
