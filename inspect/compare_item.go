package inspect

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// comparer is one call of Compare.
type comparer struct {
	a, b  Side
	opts  CompareOptions
	items []*pairItem // by name
	// byName are the same items.
	byName map[string]*pairItem
	// differences counts the names that are known not to be equal.
	differences atomic.Int64

	mu     sync.Mutex
	unread []Unread // guarded by mu
}

// pairItem is one name of two checkpoints.
type pairItem struct {
	fqn     string
	a, b    *meta.Entry // nil: not there
	differs []Aspect
	cast    bool // of two tensors: their dtypes are not the same
	unread  bool // values are not compared
	// Of two tensors whose elements are compared:
	elements int64
	slab     int64
	// done says that nothing is left to be read.
	done atomic.Bool

	mu     sync.Mutex
	left   int64        // slabs; guarded by mu
	values elementTally // guarded by mu

	// Of two objects that differ: where, and what they are.
	where string
	shown [2]struct{ kind, repr string }
}

// describe compares what the descriptions say and decides what has to be read.
func (p *pairItem) describe(o *CompareOptions) error {
	p.values, p.unread = newElementTally(), o.DescriptionsOnly
	switch {
	case p.a == nil || p.b == nil:
		return nil
	case (p.a.Tensor == nil) != (p.b.Tensor == nil):
		p.differs = append(p.differs, AspectKind)
		return nil
	case p.a.Tensor == nil:
		p.left = int64(count(!o.DescriptionsOnly))
		return nil
	}
	x, y := p.a.Tensor, p.b.Tensor
	p.cast = x.DType != y.DType
	if p.cast && !o.IgnoreDType {
		p.differs = append(p.differs, AspectDType)
	}
	if !slices.Equal(x.Shape, y.Shape) {
		p.differs = append(p.differs, AspectShape)
		return nil
	}
	return p.cut(o)
}

// cut prepares the comparison of elements.
func (p *pairItem) cut(o *CompareOptions) error {
	x, y := p.a.Tensor, p.b.Tensor
	var err error
	if p.elements, err = tensor.NumElements(x.Shape); err != nil {
		return fmt.Errorf("%q: %w", p.fqn, err)
	}
	if !x.DType.Valid() || !y.DType.Valid() {
		return fmt.Errorf("%q: %w: %v and %v", p.fqn, tensor.ErrDType, x.DType, y.DType)
	}
	p.slab = slabElements(x.Shape, int64(max(x.DType.Size(), y.DType.Size())), slabBytes/2)
	if !o.DescriptionsOnly {
		p.left = (p.elements + p.slab - 1) / p.slab
	}
	return nil
}

// toRead returns the bytes that are read if nothing stops the comparison.
func (c *comparer) toRead() int64 {
	var n int64
	for _, p := range c.items {
		if p.left > 0 {
			n += p.a.NumBytes() + p.b.NumBytes()
		}
	}
	return n
}

// jobs yields the work in the order of the names. It ends early, between two
// names, once there are enough differences: those before are then all compared.
func (c *comparer) jobs() iter.Seq[job] {
	return func(yield func(job) bool) {
		for i, p := range c.items {
			if c.enough() {
				return
			}
			if p.left == 0 {
				c.finish(p)
				continue
			}
			if p.a.Tensor == nil {
				if !yield(job{item: i}) {
					return
				}
				continue
			}
			for j := range slabs(i, p.elements, p.slab) {
				if !yield(j) {
					return
				}
			}
		}
	}
}

func (c *comparer) enough() bool {
	return c.opts.StopAfter > 0 && c.differences.Load() >= int64(c.opts.StopAfter)
}

// finish ends a name of which everything was read.
func (c *comparer) finish(p *pairItem) {
	if !isEqual(p.status()) {
		c.differences.Add(1)
	}
	p.done.Store(true)
}

// status says how a finished name compares.
func (p *pairItem) status() string {
	switch {
	case p.b == nil:
		return StatusMissing
	case p.a == nil:
		return StatusExtra
	case len(p.differs) > 0:
		return StatusDifferent
	case p.unread:
		return StatusMatching
	case p.values.same && !p.cast:
		return StatusIdentical
	}
	return StatusClose
}

// result describes a finished name.
func (p *pairItem) result() Compared {
	out := Compared{FQN: p.fqn, Status: p.status(), Differs: p.differs, A: p.sideItem(p.a, 0), B: p.sideItem(p.b, 1), Where: p.where}
	if p.a != nil && p.a.FQN != p.fqn {
		out.Renamed = p.a.FQN
	}
	if !p.values.same || p.values.differing > 0 {
		out.Values = p.values.difference(p.elements, p.a.Tensor.Shape)
	}
	return out
}

// sideItem describes one side, with what was read of an object that differs.
func (p *pairItem) sideItem(e *meta.Entry, side int) *Item {
	if e == nil {
		return nil
	}
	it := NewItem(e)
	if v := p.shown[side]; v.kind != "" {
		it.Type, it.Repr = v.kind, v.repr
	}
	return &it
}

// elementTally sums up how elements differ.
type elementTally struct {
	same      bool // not a bit differs
	differing int64
	nans      int64
	maxAbs    float64
	maxRel    float64
	first     int64 // in row-major order, if any differ
	a, b      string
}

func newElementTally() elementTally { return elementTally{same: true, first: math.MaxInt64} }

func (t *elementTally) merge(o *elementTally) {
	t.same = t.same && o.same
	t.differing += o.differing
	t.nans += o.nans
	t.maxAbs, t.maxRel = max(t.maxAbs, o.maxAbs), max(t.maxRel, o.maxRel)
	if o.first < t.first {
		t.first, t.a, t.b = o.first, o.a, o.b
	}
}

func (t *elementTally) difference(elements int64, shape []int64) *ValueDifference {
	out := &ValueDifference{
		Elements: elements, Differing: t.differing, NaNs: t.nans, MaxAbs: Number(t.maxAbs), MaxRel: Number(t.maxRel),
	}
	if t.differing > 0 {
		out.First = &FirstDifference{Index: unravel(t.first, shape), A: t.a, B: t.b}
	}
	return out
}

// unravel returns the index of an element in row-major order.
func unravel(i int64, shape []int64) []int64 {
	out := make([]int64, len(shape))
	for d, n := range slices.Backward(shape) {
		out[d] = i % n
		i /= n
	}
	return out
}
