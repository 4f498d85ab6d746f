package collective

import (
	"context"

	"github.com/cairn-ckpt/cairn/tensor"
)

// AllReduce replaces the elements of t by the reduction of those of all ranks,
// whose tensors have as many.
func (c *Comm) AllReduce(ctx context.Context, t *tensor.Tensor, op Op) error {
	return c.do(ctx, c.allReduce(t, op))
}

// AllReduceAsync starts an [Comm.AllReduce].
func (c *Comm) AllReduceAsync(ctx context.Context, t *tensor.Tensor, op Op) *Work {
	return c.start(ctx, c.allReduce(t, op))
}

func (c *Comm) allReduce(t *tensor.Tensor, op Op) *task {
	k := &task{call: call{kind: allReduce, op: op}}
	if k.err = checkTarget(t); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = t.DType(), t.NumElements()
	if k.err = op.check(t.DType()); k.err != nil {
		return k
	}
	k.call.algorithm = c.chooseReduce(allReduce, t.DType(), t.NumBytes())
	if c.size == 1 {
		return k
	}
	mem, store := writable(t, true)
	k.settle = store
	red := newReduction(op, t.DType(), c.size)
	switch k.call.algorithm {
	case Eager:
		all := newBlocks(c.size, mem)
		k.payload = all
		k.settle = func() error {
			c.reduceBlocks(&red, all, func(b []byte) []byte { return b }, mem)
			return settle(store)
		}
	case Tree:
		k.run = func(ctx context.Context, x *exchange) error { return x.treeReduce(ctx, mem, red) }
	case Ring:
		k.call.piece = c.o.PieceBytes
		k.run = func(ctx context.Context, x *exchange) error { return x.ringReduce(ctx, mem, red) }
	case Direct:
		k.call.piece, k.wide = c.o.PieceBytes, true
		k.run = func(ctx context.Context, x *exchange) error { return x.directReduce(ctx, mem, red) }
	}
	return k
}

// reduceBlocks reduces a part of each rank's block, in the order of the ranks,
// into dst.
func (c *Comm) reduceBlocks(red *reduction, all *blocks, part func([]byte) []byte, dst []byte) {
	of := func(rank int) []byte { return part(all.of((c.rank - rank + c.size) % c.size)) }
	sum, room := make([]byte, red.sumBytes(len(dst))), make([]byte, red.sumBytes(len(dst)))
	copy(sum, red.widen(room, of(0)))
	for r := 1; r < c.size; r++ {
		red.add(sum, sum, of(r), room)
	}
	red.finish(dst, sum)
}

// settle calls store, where there is anything to store.
func settle(store func() error) error {
	if store == nil {
		return nil
	}
	return store()
}

// ringReduce keeps partial results in mem itself where they are elements, else
// in memory of their own for one segment.
func (x *exchange) ringReduce(ctx context.Context, mem []byte, red reduction) error {
	seg := segments(mem, red.elem.Size(), x.size)
	g := &ring{
		exchange: x, reduce: x.size - 1, steps: 2 * (x.size - 1), piece: x.o.PieceBytes,
		red: red, own: seg, out: seg, partial: seg,
	}
	if red.widens() {
		g.keepPartial(len(seg(0)))
	}
	return g.run(ctx)
}

// keepPartial gives the ring memory for the partial results of one segment of up
// to n bytes.
func (g *ring) keepPartial(n int) {
	mem := make([]byte, g.red.sumBytes(n))
	g.shared = true
	g.partial = func(int) []byte { return mem }
}
