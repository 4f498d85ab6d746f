package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// compareWorker has the buffers of one worker: the bytes of both sides, and blocks of
// them as numbers.
type compareWorker struct {
	x, y    []byte
	floats  [2][]float64
	ints    [2][]int64
	complex [2][]complex128
}

// numbers compares two blocks of elements as numbers of the smallest kind that holds
// both. The index of the first difference is relative to the block.
func (w *compareWorker) numbers(x, y tensor.DType, p, q []byte, r rule, t *elementTally) error {
	switch {
	case x.IsComplex() || y.IsComplex():
		return compareAs(x, y, p, q, &w.complex, func(a, b []complex128) { compareComplex(a, b, r, t) })
	case whole(x) && whole(y):
		return compareAs(bitsOf(x), bitsOf(y), p, q, &w.ints, func(a, b []int64) {
			compareInts(a, b, x == tensor.Uint64, y == tensor.Uint64, r, t)
		})
	}
	return compareAs(x, y, p, q, &w.floats, func(a, b []float64) { compareFloats(a, b, r, t) })
}

// whole reports whether elements of d are compared as integers: a bool is 0 or 1.
func whole(d tensor.DType) bool { return d.IsInteger() || d == tensor.Bool }

// bitsOf returns the dtype as which an integer is read as int64. That is its own bits
// if it is a uint64.
func bitsOf(d tensor.DType) tensor.DType {
	if d == tensor.Uint64 {
		return tensor.Int64
	}
	return d
}

// compareAs calls compare with two blocks as values of one type.
func compareAs[E tensor.Element](x, y tensor.DType, p, q []byte, room *[2][]E, compare func(a, b []E)) error {
	if room[0] == nil {
		room[0], room[1] = make([]E, blockElements), make([]E, blockElements)
	}

	a, err := converted(x, p, room[0])
	if err != nil {
		return err
	}

	b, err := converted(y, q, room[1])
	if err == nil {
		compare(a, b)
	}
	return err
}

// rule defines when two numbers are equal.
type rule struct {
	rtol, atol float64
	nanDiffers bool
}

// add counts the pair of elements i, which are not equal: they differ by d,
// relative to the magnitude b. Neither is NaN.
func (t *elementTally) add(i int, d, b float64, r rule) {
	t.maxAbs = max(t.maxAbs, d)
	if b != 0 {
		rel := d / b
		if math.IsInf(d, 0) {
			rel = d // for any b
		}
		t.maxRel = max(t.maxRel, rel)
	}

	if !(d <= r.atol+r.rtol*b) || math.IsInf(d, 0) || math.IsInf(b, 0) {
		t.differ(i)
	}
}

func (t *elementTally) differ(i int) {
	t.differing++
	t.first = min(t.first, int64(i))
}

// compareFloats counts in local variables for speed. It leaves elements that are
// not finite to t.
func compareFloats(x, y []float64, r rule, t *elementTally) {
	maxAbs, maxRel := t.maxAbs, t.maxRel
	differing, first := int64(0), -1
	y = y[:len(x)]
	for i, a := range x {
		b := y[i]
		if a == b {
			continue
		}

		d, base := math.Abs(a-b), math.Abs(b)
		if !(d <= math.MaxFloat64) {
			t.odd(i, a, b, d, r)
			continue
		}

		if d > maxAbs {
			maxAbs = d
		}
		if d > maxRel*base && base != 0 {
			maxRel = max(maxRel, d/base)
		}
		if d > r.atol+r.rtol*base {
			if differing++; first < 0 {
				first = i
			}
		}
	}

	t.maxAbs, t.maxRel = max(t.maxAbs, maxAbs), max(t.maxRel, maxRel)
	if differing > 0 {
		t.differing += differing
		t.first = min(t.first, int64(first))
	}
}

// odd counts the pair of elements i, one of which is not finite.
func (t *elementTally) odd(i int, a, b, d float64, r rule) {
	if d != d {
		t.nan(i, a != a && b != b, r)
		return
	}
	t.add(i, d, math.Abs(b), r)
}

// nan counts the pair of elements i, one or both of which are NaN.
func (t *elementTally) nan(i int, both bool, r rule) {
	if both && !r.nanDiffers {
		return
	}
	t.nans++
	t.differ(i)
}

// compareInts compares integers. Those of a uint64 side are given by their bits.
func compareInts(x, y []int64, xUnsigned, yUnsigned bool, r rule, t *elementTally) {
	for i, a := range x {
		b := y[i]
		aLarge, bLarge := xUnsigned && a < 0, yUnsigned && b < 0 // 1<<63 or more
		if a == b && aLarge == bLarge {
			continue
		}

		d := float64(uint64(max(a, b)) - uint64(min(a, b)))
		switch {
		case aLarge == bLarge:
		case a < 0 && b < 0: // one of them is negative
			d = math.Abs(intFloat(a, aLarge) - intFloat(b, bLarge))
		default:
			d = float64(max(uint64(a), uint64(b)) - min(uint64(a), uint64(b)))
		}

		t.add(i, d, math.Abs(intFloat(b, bLarge)), r)
	}
}

func intFloat(n int64, large bool) float64 {
	if large {
		return float64(uint64(n))
	}
	return float64(n)
}

func compareComplex(x, y []complex128, r rule, t *elementTally) {
	for i, a := range x {
		b := y[i]
		if a == b {
			continue
		}

		isNaN := func(c complex128) bool { return real(c) != real(c) || imag(c) != imag(c) }
		if isNaN(a) || isNaN(b) {
			t.nan(i, isNaN(a) && isNaN(b), r)
			continue
		}

		t.add(i, math.Hypot(minus(real(a), real(b)), minus(imag(a), imag(b))), math.Hypot(real(b), imag(b)), r)
	}
}

// minus returns a-b, and 0 for equal infinities.
func minus(a, b float64) float64 {
	if a == b {
		return 0
	}
	return a - b
}

// differingBits counts the elements of size bytes that differ and returns the
// index of the first.
func differingBits(p, q []byte, size int) (n, first int64) {
	first = math.MaxInt64
	for i := 0; i < len(p); i += size {
		if !bytes.Equal(p[i:i+size], q[i:i+size]) {
			n++
			first = min(first, int64(i/size))
		}
	}
	return n, first
}

// compare compares a slab of two tensors, or two objects.
func (c *comparer) compare(ctx context.Context, w *compareWorker, j job) error {
	p := c.items[j.item]
	switch {
	case int64(j.item) > c.last.Load():
		return nil
	case p.a.Tensor == nil:
		return c.objects(ctx, p)
	case j.together > 0:
		return c.together(ctx, w, c.items[j.item:j.item+j.together])
	}

	return c.slab(ctx, w, p, j)
}

func (c *comparer) objects(ctx context.Context, p *pairItem) error {
	codec, x, err := c.a.Content.ReadBytes(ctx, p.a)
	if err != nil {
		return err
	}

	otherCodec, y, err := c.b.Content.ReadBytes(ctx, p.b)
	if err != nil {
		return err
	}
	c.opts.Progress(int64(len(x) + len(y)))

	// Equal bytes may refer to tensors that are not compared by name.
	if codec != otherCodec || !bytes.Equal(x, y) || bytes.Contains(x, []byte(`"$ref"`)) {
		if err := c.compareDecoded(ctx, p, codec, x, otherCodec, y); err != nil {
			return fmt.Errorf("%q: %w", p.FQN, err)
		}
	}

	c.finish(p)
	return nil
}

// compareDecoded compares values with different bytes. They are different if a codec is
// unknown.
func (c *comparer) compareDecoded(ctx context.Context, p *pairItem, codec string, x []byte, otherCodec string, y []byte) error {
	u, err := value.Decode(codec, x)
	var v any
	if err == nil {
		v, err = value.Decode(otherCodec, y)
	}
	switch {
	case errors.Is(err, value.ErrCodec):
	case err != nil:
		return err
	default:
		if u, err = c.withTensors(ctx, p, &c.a, u, c.opts.Rename); err != nil {
			return err
		}
		if v, err = c.withTensors(ctx, p, &c.b, v, func(n string) string { return n }); err != nil {
			return err
		}

		equal, where := equalValues(u, v)
		if equal {
			return nil
		}

		p.Where = where
		p.A.setValue(u)
		p.B.setValue(v)
	}

	p.Differs = append(p.Differs, AspectValues)
	return nil
}

// withTensors returns an object of a side with those tensors that are not
// compared by name.
func (c *comparer) withTensors(ctx context.Context, p *pairItem, s *Side, v any, rename func(string) string) (any, error) {
	v, unread, err := s.resolve(ctx, v, func(fqn string) (string, bool) {
		name := rename(fqn)
		q := c.byName[name]
		return name, q != nil && q.a != nil && q.b != nil
	})
	if len(unread) > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unread = append(c.unread, Unread{p.FQN, "it refers to " + strings.Join(unread[:min(len(unread), 3)], ", ") + ", which could not be read with it"})
	}

	return v, err
}

// together compares pairs of small tensors, among which are items that need no read.
func (c *comparer) together(ctx context.Context, w *compareWorker, items []*pairItem) error {
	items = slices.DeleteFunc(slices.Clone(items), func(p *pairItem) bool { return p.done.Load() })
	a, b := make([]*meta.Entry, len(items)), make([]*meta.Entry, len(items))
	for i, p := range items {
		a[i], b[i] = p.a, p.b
	}

	var x, y [][]byte
	var err error
	if x, w.x, err = readTogether(ctx, c.a.Content, a, w.x); err != nil {
		return err
	}

	if y, w.y, err = readTogether(ctx, c.b.Content, b, w.y); err != nil {
		return err
	}

	for i, p := range items {
		if err := c.elements(w, p, job{hi: p.elements}, x[i], y[i]); err != nil {
			return err
		}
	}

	return nil
}

func (c *comparer) slab(ctx context.Context, w *compareWorker, p *pairItem, j job) error {
	n := j.hi - j.lo
	w.x, w.y = grow(w.x, n*int64(p.a.Tensor.DType.Size())), grow(w.y, n*int64(p.b.Tensor.DType.Size()))
	if err := readFlat(ctx, c.a.Content.ReadEntry, p.a, j.lo, j.hi, w.x); err != nil {
		return err
	}
	if err := readFlat(ctx, c.b.Content.ReadEntry, p.b, j.lo, j.hi, w.y); err != nil {
		return err
	}
	return c.elements(w, p, j, w.x, w.y)
}

// elements compares a slab of two tensors, with the elements px and py.
func (c *comparer) elements(w *compareWorker, p *pairItem, j job, px, py []byte) error {
	x, y, n := p.a.Tensor.DType, p.b.Tensor.DType, j.hi-j.lo
	c.opts.Progress(int64(len(px) + len(py)))
	sum := newElementTally()
	var vector *products
	if c.opts.Change {
		vector = new(products)
	}

	for at := int64(0); at < n; at += blockElements {
		end := min(at+blockElements, n)
		t, err := c.block(w, x, y, px[at*int64(x.Size()):end*int64(x.Size())], py[at*int64(y.Size()):end*int64(y.Size())], vector)
		if err != nil {
			return fmt.Errorf("%q: %w", p.FQN, err)
		}
		if t.differing > 0 {
			t.first += j.lo + at
		}
		sum.merge(&t)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.values.merge(&sum)
	if vector != nil && p.vector == nil {
		p.vector = make(map[int]*products, 1)
	}
	if vector != nil {
		p.vector[j.slab] = vector
	}

	if p.left--; p.left > 0 {
		return nil
	}

	if p.values.differing > 0 {
		p.Differs = append(p.Differs, AspectValues)
	}
	c.finish(p)
	return nil
}

// block compares two blocks of elements, also as vectors if vector is not nil. The index of
// the first difference is relative to the block.
func (c *comparer) block(w *compareWorker, x, y tensor.DType, p, q []byte, vector *products) (elementTally, error) {
	t := newElementTally()
	t.same = x == y && bytes.Equal(p, q)
	if vector != nil {
		if err := w.vectors(x, y, p, q, t.same, vector); err != nil {
			return t, err
		}
	}

	if t.same && (!c.opts.NaNDiffers || c.opts.Exact) {
		return t, nil
	}

	r := rule{c.opts.Rtol, c.opts.Atol, c.opts.NaNDiffers}
	if c.opts.Exact {
		r = rule{}
	}

	if err := w.numbers(x, y, p, q, r, &t); err != nil {
		return t, err
	}

	if c.opts.Exact && x == y {
		t.differing, t.first = differingBits(p, q, x.Size())
	}
	if t.differing > 0 {
		t.a, t.b = elementText(x, p, t.first), elementText(y, q, t.first)
	}
	return t, nil
}

func elementText(d tensor.DType, p []byte, i int64) string {
	size := int64(d.Size())
	return string(ElementFormat(d)(nil, p[i*size:(i+1)*size]))
}
