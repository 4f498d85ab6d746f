package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// pairNumbers compares blocks of elements. It has buffers, so only one goroutine
// may use it.
type pairNumbers struct {
	floats   [2][]float64
	ints     [2][]int64
	unsigned [2][]uint64
	complex  [2][]complex128
}

// compare compares two blocks with the same number of elements. The index of the
// first difference is relative to the block.
func (n *pairNumbers) compare(x, y tensor.DType, p, q []byte, o *CompareOptions) (elementTally, error) {
	t := newElementTally()
	r := rule{o.Rtol, o.Atol, o.NaNDiffers}
	if o.Exact {
		r = rule{}
	}
	if err := n.numbers(x, y, p, q, r, &t); err != nil {
		return t, err
	}
	if o.Exact && x == y {
		t.differing, t.first = differingBits(p, q, x.Size())
	}
	return t, nil
}

// numbers compares elements as numbers of the smallest kind that holds both.
func (n *pairNumbers) numbers(x, y tensor.DType, p, q []byte, r rule, t *elementTally) error {
	switch {
	case x.IsComplex() || y.IsComplex():
		a, b, err := both(x, y, p, q, &n.complex)
		if err == nil {
			compareComplex(a, b, r, t)
		}
		return err
	case !whole(x) || !whole(y):
		a, b, err := both(x, y, p, q, &n.floats)
		if err == nil {
			compareFloats(a, b, r, t)
		}
		return err
	case x != tensor.Uint64 && y != tensor.Uint64:
		a, b, err := both(x, y, p, q, &n.ints)
		if err == nil {
			compareInts(a, b, r, t)
		}
		return err
	case unsigned(x) && unsigned(y):
		a, b, err := both(x, y, p, q, &n.unsigned)
		if err == nil {
			compareInts(a, b, r, t)
		}
		return err
	}
	return n.mixed(x, y, p, q, r, t)
}

// whole reports whether elements of d are compared as integers: a bool is 0 or 1.
func whole(d tensor.DType) bool { return d.IsInteger() || d == tensor.Bool }

// unsigned reports whether elements of d are never negative.
func unsigned(d tensor.DType) bool { return d >= tensor.Uint64 && d <= tensor.Bool }

// both returns two blocks as values of one type.
func both[E tensor.Element](x, y tensor.DType, p, q []byte, room *[2][]E) (a, b []E, err error) {
	if room[0] == nil {
		room[0], room[1] = make([]E, blockElements), make([]E, blockElements)
	}
	if a, err = converted(x, p, room[0]); err != nil {
		return nil, nil, err
	}
	b, err = converted(y, q, room[1])
	return a, b, err
}

func (n *pairNumbers) room() []int64 {
	if n.ints[0] == nil {
		n.ints = [2][]int64{make([]int64, blockElements), make([]int64, blockElements)}
	}
	return n.ints[0]
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

func compareInts[I int64 | uint64](x, y []I, r rule, t *elementTally) {
	for i, a := range x {
		b := y[i]
		switch {
		case a > b:
			t.add(i, float64(uint64(a)-uint64(b)), math.Abs(float64(b)), r)
		case a < b:
			t.add(i, float64(uint64(b)-uint64(a)), math.Abs(float64(b)), r)
		}
	}
}

// mixed compares uint64 with a signed type.
func (n *pairNumbers) mixed(x, y tensor.DType, p, q []byte, r rule, t *elementTally) error {
	signedFirst := y == tensor.Uint64
	if signedFirst {
		x, y, p, q = y, x, q, p
	}
	u, err := valuesOf[uint64](x, p)
	if err != nil {
		return err
	}
	s, err := converted(y, q, n.room())
	if err != nil {
		return err
	}
	for i, a := range u {
		b := s[i]
		if b >= 0 && a == uint64(b) {
			continue
		}
		d, base := float64(a)-float64(b), math.Abs(float64(b))
		if b >= 0 {
			d = float64(max(a, uint64(b)) - min(a, uint64(b)))
		}
		if signedFirst {
			base = float64(a)
		}
		t.add(i, d, base, r)
	}
	return nil
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

// compareWorker is the state of one worker.
type compareWorker struct {
	*comparer
	each int64 // size of the buffer of a side
	x, y []byte
	nums pairNumbers
}

func compareJob(ctx context.Context, w *compareWorker, j job) error {
	p := w.items[j.item]
	if p.a.Tensor == nil {
		return w.objects(ctx, p)
	}
	return w.slab(ctx, p, j)
}

// objects compares two objects by value.
func (w *compareWorker) objects(ctx context.Context, p *pairItem) error {
	codec, x, err := w.a.Content.ReadBytes(ctx, p.a)
	if err != nil {
		return err
	}
	otherCodec, y, err := w.b.Content.ReadBytes(ctx, p.b)
	if err != nil {
		return err
	}
	w.opts.Progress(int64(len(x) + len(y)))
	// Equal bytes may refer to tensors that are not compared by name.
	if codec != otherCodec || !bytes.Equal(x, y) || bytes.Contains(x, []byte(`"$ref"`)) {
		if err := w.compareDecoded(ctx, p, codec, x, otherCodec, y); err != nil {
			return fmt.Errorf("%q: %w", p.fqn, err)
		}
	}
	w.finish(p)
	return nil
}

// compareDecoded compares values whose bytes differ. They are different if a
// codec is unknown.
func (w *compareWorker) compareDecoded(ctx context.Context, p *pairItem, codec string, x []byte, otherCodec string, y []byte) error {
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
		if u, err = w.withTensors(ctx, p, &w.a, u, w.opts.Rename); err != nil {
			return err
		}
		if v, err = w.withTensors(ctx, p, &w.b, v, func(n string) string { return n }); err != nil {
			return err
		}
		equal, where := EqualValues(u, v)
		if equal {
			return nil
		}
		p.where = where
		for i, v := range []any{u, v} {
			p.shown[i].kind, p.shown[i].repr = TypeName(v), Repr(v, MaxRepr)
		}
	}
	p.differs = append(p.differs, AspectValues)
	return nil
}

// withTensors returns an object of a side with those tensors that are not
// compared by name.
func (w *compareWorker) withTensors(ctx context.Context, p *pairItem, s *Side, v any, rename func(string) string) (any, error) {
	v, unread, err := s.resolve(ctx, v, func(fqn string) (string, bool) {
		name := rename(fqn)
		q := w.byName[name]
		return name, q != nil && q.a != nil && q.b != nil
	})
	if len(unread) > 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.unread = append(w.unread, Unread{p.fqn, "it refers to " + strings.Join(unread[:min(len(unread), 3)], ", ") + ", which could not be read with it"})
	}
	return v, err
}

// slab compares a slab of two tensors.
func (w *compareWorker) slab(ctx context.Context, p *pairItem, j job) error {
	x, y := p.a.Tensor.DType, p.b.Tensor.DType
	size := int64(max(x.Size(), y.Size()))
	step := w.each / size / blockElements * blockElements
	sum := newElementTally()
	for lo := j.lo; lo < j.hi; lo += step {
		hi := min(lo+step, j.hi)
		w.x, w.y = grow(w.x, (hi-lo)*int64(x.Size())), grow(w.y, (hi-lo)*int64(y.Size()))
		if err := readFlat(ctx, w.a.Content, p.a, lo, hi, w.x); err != nil {
			return err
		}
		if err := readFlat(ctx, w.b.Content, p.b, lo, hi, w.y); err != nil {
			return err
		}
		w.opts.Progress(int64(len(w.x) + len(w.y)))
		if err := w.part(x, y, lo, &sum); err != nil {
			return fmt.Errorf("%q: %w", p.fqn, err)
		}
	}
	return w.settle(p, &sum)
}

// part compares the elements in the buffers. The first one has the index at.
func (w *compareWorker) part(x, y tensor.DType, at int64, sum *elementTally) error {
	a, b := w.x, w.y
	for len(a) > 0 {
		n := min(blockElements, len(a)/x.Size())
		p, q := a[:n*x.Size()], b[:n*y.Size()]
		same := x == y && bytes.Equal(p, q)
		if !same || w.opts.NaNDiffers && !w.opts.Exact {
			t, err := w.nums.compare(x, y, p, q, &w.opts)
			if err != nil {
				return err
			}
			t.same = same
			if t.differing > 0 {
				t.locate(x, y, p, q, at, sum.differing == 0)
			}
			sum.merge(&t)
		}
		a, b, at = a[len(p):], b[len(q):], at+int64(n)
	}
	return nil
}

// locate converts the index of the first difference from the block to the tensor,
// and prints its elements if show is set.
func (t *elementTally) locate(x, y tensor.DType, p, q []byte, at int64, show bool) {
	if show {
		t.a, t.b = elementText(x, p, t.first), elementText(y, q, t.first)
	}
	t.first += at
}

// elementText prints element i of p.
func elementText(d tensor.DType, p []byte, i int64) string {
	size := int64(d.Size())
	return string(ElementFormat(d)(nil, p[i*size:(i+1)*size]))
}

// settle adds the result of a slab, and finishes the name after the last slab.
func (w *compareWorker) settle(p *pairItem, sum *elementTally) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.values.merge(sum)
	if p.left--; p.left > 0 {
		return nil
	}
	if p.values.differing > 0 {
		p.differs = append(p.differs, AspectValues)
	}
	w.finish(p)
	return nil
}
