package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// compareWorker is what one worker keeps between slabs.
type compareWorker struct {
	*comparer
	each int64 // bytes of a side's buffer
	x, y []byte
	nums pairNumbers
}

// compareJob does one job.
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

// compareDecoded compares values whose bytes differ. If a codec is unknown, they
// are different.
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

// withTensors returns an object of a side with those tensors inside that are not
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

// part compares the elements in the buffers, of which the first has the number
// at.
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

// locate turns the place of the first difference in a block into one in the
// tensor, and prints its elements if that is of use.
func (t *elementTally) locate(x, y tensor.DType, p, q []byte, at int64, show bool) {
	if show {
		t.a, t.b = elementText(x, p, t.first), elementText(y, q, t.first)
	}
	t.first += at
}

// elementText prints the i-th element in p.
func elementText(d tensor.DType, p []byte, i int64) string {
	size := int64(d.Size())
	return string(ElementFormat(d)(nil, p[i*size:(i+1)*size]))
}

// settle adds what a slab gave, and ends the name if it was the last.
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
