package collective

import (
	"context"

	"github.com/cairn-ckpt/cairn/tensor"
)

// AllGather hands every rank's src to all ranks: dst holds them one after the
// other, in the order of the ranks and each in row-major order. So dst has the
// shape of src with its first dimension multiplied by the size of the group, or
// any other shape of as many elements. All ranks' src have equally many.
func (c *Comm) AllGather(ctx context.Context, dst, src *tensor.Tensor) error {
	return c.do(ctx, c.allGather(dst, src))
}

// AllGatherAsync starts an [Comm.AllGather].
func (c *Comm) AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) *Work {
	return c.start(ctx, c.allGather(dst, src))
}

func (c *Comm) allGather(dst, src *tensor.Tensor) *task {
	k := &task{call: call{kind: allGather}}
	if k.err = c.checkParts(dst, src, dst, src); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = src.DType(), src.NumElements()
	k.call.algorithm = c.choose(allGather, src.NumBytes(), dst.NumBytes())
	from := readable(src)
	to, store := writable(dst, false)
	k.settle = store
	part := func(r int) []byte { return to[r*len(from) : (r+1)*len(from)] }
	if k.call.algorithm == Eager {
		all := newBlocks(c.size, from)
		k.payload = all
		k.settle = func() error {
			for r := range c.size {
				copy(part(r), all.of((c.rank-r+c.size)%c.size))
			}
			return settle(store)
		}
		return k
	}
	k.call.piece = c.o.PieceBytes
	k.run = func(ctx context.Context, x *exchange) error {
		copy(part(x.rank), from)
		g := &ring{exchange: x, steps: x.size - 1, piece: x.o.PieceBytes, own: part, out: part}
		return g.run(ctx)
	}
	return k
}
