package collective

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ReduceScatter reduces the elements of all ranks' src and gives each rank its
// part: rank r's dst holds the r-th of as many equal parts of the result, in
// row-major order, as there are ranks. So dst has the shape of src with its
// first dimension divided by the size of the group, or any other shape of as
// many elements. src is not written to.
func (c *Comm) ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op Op) error {
	return c.do(ctx, c.reduceScatter(dst, src, op))
}

// ReduceScatterAsync starts a [Comm.ReduceScatter].
func (c *Comm) ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op Op) *Work {
	return c.start(ctx, c.reduceScatter(dst, src, op))
}

func (c *Comm) reduceScatter(dst, src *tensor.Tensor, op Op) *task {
	k := &task{call: call{kind: reduceScatter, op: op}}
	if k.err = c.checkParts(src, dst, dst, src); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = dst.DType(), dst.NumElements()
	if k.err = op.check(dst.DType()); k.err != nil {
		return k
	}
	k.call.algorithm = c.chooseReduce(reduceScatter, src.DType(), src.NumBytes())
	s := &scattering{from: readable(src), red: newReduction(op, dst.DType(), c.size)}
	s.to, k.settle = writable(dst, false)
	switch {
	case c.size == 1:
		k.settle = func() error { return tensor.Copy(dst, flat(s.from, dst)) }
	case k.call.algorithm == Eager:
		all, store := newBlocks(c.size, s.from), k.settle
		k.payload = all
		k.settle = func() error {
			c.reduceBlocks(&s.red, all, func(b []byte) []byte { return s.part(b, c.rank) }, s.to)
			return settle(store)
		}
	case k.call.algorithm == Direct:
		k.call.piece, k.wide, k.run = c.o.PieceBytes, true, s.direct
	default:
		k.call.piece, k.run = c.o.PieceBytes, s.ring
	}
	return k
}

// scattering is a reduce-scatter: the memory of all parts, that of this rank's
// own in the result, and how they are reduced.
type scattering struct {
	from, to []byte
	red      reduction
}

// part returns the part of rank r in the memory of all.
func (s *scattering) part(all []byte, r int) []byte { return all[r*len(s.to) : (r+1)*len(s.to)] }

func (s *scattering) own(r int) []byte { return s.part(s.from, r) }

func (s *scattering) result(int) []byte { return s.to }

func (s *scattering) direct(ctx context.Context, x *exchange) error {
	d := &direct{exchange: x, piece: x.o.PieceBytes, red: s.red, own: s.own, out: s.to}
	return d.run(ctx)
}

func (s *scattering) ring(ctx context.Context, x *exchange) error {
	g := &ring{
		exchange: x, shift: -1, reduce: x.size - 1, steps: x.size - 1, piece: x.o.PieceBytes,
		red: s.red, own: s.own, out: s.result, shared: true, partial: s.result,
	}
	if s.red.widens() {
		g.keepPartial(len(s.to))
	}
	return g.run(ctx)
}

// checkParts returns an error unless whole has as many elements as there are
// ranks times those of part, of one type, and dst can be written to.
func (c *Comm) checkParts(whole, part, dst, src *tensor.Tensor) error {
	if err := checkSource(src); err != nil {
		return err
	}
	if err := checkTarget(dst); err != nil {
		return err
	}
	if dst.DType() != src.DType() {
		return fmt.Errorf("%v from %v: %w", dst, src, tensor.ErrDType)
	}
	n, rest := whole.NumElements()/int64(c.size), whole.NumElements()%int64(c.size)
	if rest != 0 || n != part.NumElements() {
		return fmt.Errorf("%v is not %d times %v: %w", whole, c.size, part, tensor.ErrShape)
	}
	return nil
}

// flat returns a tensor of t's type and shape over mem.
func flat(mem []byte, t *tensor.Tensor) *tensor.Tensor {
	f, err := tensor.FromBytes(t.DType(), t.Shape(), mem)
	if err != nil {
		panic(err) // the memory was made for as many elements
	}
	return f
}
