package collective

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// AllReduce replaces each element of t by its reduction over all ranks. The tensors of
// all ranks have the same number of elements.
func (c *Comm) AllReduce(ctx context.Context, t *tensor.Tensor, op Op) error {
	return c.do(ctx, c.allReduce(t, op))
}

// AllReduceAsync starts an [Comm.AllReduce].
func (c *Comm) AllReduceAsync(ctx context.Context, t *tensor.Tensor, op Op) *Work {
	return c.start(ctx, c.allReduce(t, op))
}

func (c *Comm) allReduce(t *tensor.Tensor, op Op) *task {
	k := &task{call: call{kind: OpAllReduce, op: op}}
	if k.err = checkTarget(t); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = t.DType(), t.NumElements()
	if k.err = op.Check(t.DType()); k.err != nil || c.size == 1 {
		return k
	}
	mem, store := writable(t, true)
	red := newReduction(op, t.DType(), c.size)
	k.wide, k.settle = red.widens() && !c.small(len(mem)), store
	k.run = func(ctx context.Context, x *exchange) error { return x.reduceAll(ctx, mem, red) }
	return k
}

// Broadcast replaces the elements of t on all ranks by the elements on rank root.
func (c *Comm) Broadcast(ctx context.Context, t *tensor.Tensor, root int) error {
	return c.do(ctx, c.broadcast(t, root))
}

// BroadcastAsync starts a [Comm.Broadcast].
func (c *Comm) BroadcastAsync(ctx context.Context, t *tensor.Tensor, root int) *Work {
	return c.start(ctx, c.broadcast(t, root))
}

func (c *Comm) broadcast(t *tensor.Tensor, root int) *task {
	k := &task{call: call{kind: group.OpBroadcast, root: root}}
	if root < 0 || root >= c.size {
		k.err = fmt.Errorf("root %d of %d ranks: %w", root, c.size, group.ErrInvalid)
		return k
	}
	check := checkTarget
	if c.rank == root {
		check = checkSource
	}
	if k.err = check(t); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = t.DType(), t.NumElements()
	if c.size == 1 {
		return k
	}
	var mem []byte
	if c.rank == root {
		mem, k.settle = readable(t), func() error { return nil }
	} else {
		mem, k.settle = writable(t, false)
	}
	k.run = func(ctx context.Context, x *exchange) error {
		if c.small(len(mem)) {
			return x.treeDown(ctx, mem, root)
		}
		return x.chain(ctx, mem, root)
	}
	return k
}

// AllGather hands every rank's src to all ranks: dst holds them one after the
// other, in the order of the ranks and each in row-major order. So dst has the
// shape of src with its first dimension multiplied by the size of the group, or
// another shape with this number of elements. The src of all ranks have equally many.
func (c *Comm) AllGather(ctx context.Context, dst, src *tensor.Tensor) error {
	return c.do(ctx, c.allGather(dst, src))
}

// AllGatherAsync starts an [Comm.AllGather].
func (c *Comm) AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) *Work {
	return c.start(ctx, c.allGather(dst, src))
}

func (c *Comm) allGather(dst, src *tensor.Tensor) *task {
	k := &task{call: call{kind: group.OpAllGather}}
	if k.err = c.checkParts(dst, src, dst, src); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = src.DType(), src.NumElements()
	from := readable(src)
	to, store := writable(dst, false)
	part := func(r int) []byte { return to[r*len(from) : (r+1)*len(from)] }
	k.settle = store
	k.run = func(ctx context.Context, x *exchange) error {
		copy(part(x.rank), from)
		g := &ring{exchange: x, lane: dataLane, steps: x.size - 1, own: part, result: part}
		return g.run(ctx)
	}
	return k
}

// ReduceScatter reduces the elements of all ranks' src, cuts the result into equal
// parts in row-major order, and stores part r in the dst of rank r. So dst has the
// shape of src with its first dimension divided by the size of the group, or another
// shape with this number of elements. src is not written to.
func (c *Comm) ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op Op) error {
	return c.do(ctx, c.reduceScatter(dst, src, op))
}

// ReduceScatterAsync starts a [Comm.ReduceScatter].
func (c *Comm) ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op Op) *Work {
	return c.start(ctx, c.reduceScatter(dst, src, op))
}

func (c *Comm) reduceScatter(dst, src *tensor.Tensor, op Op) *task {
	k := &task{call: call{kind: OpReduceScatter, op: op}}
	if k.err = c.checkParts(src, dst, dst, src); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = dst.DType(), dst.NumElements()
	if k.err = op.Check(dst.DType()); k.err != nil {
		return k
	}
	from := readable(src)
	to, store := writable(dst, false)
	own := func(r int) []byte { return from[r*len(to) : (r+1)*len(to)] }
	red := newReduction(op, dst.DType(), c.size)
	k.wide, k.settle = red.widens(), store
	k.run = func(ctx context.Context, x *exchange) error {
		switch {
		case x.size == 1:
			copy(to, from)
			return nil
		case red.widens():
			return x.reduceDirect(ctx, own, to, red)
		}
		g := &ring{
			exchange: x, lane: dataLane, shift: -1, reduce: x.size - 1, steps: x.size - 1,
			red: red, own: own, result: func(int) []byte { return to }, shared: true,
		}
		return g.run(ctx)
	}
	return k
}

// checkParts returns an error unless whole has the elements of one part for each
// rank, of one type, and dst can be written to.
func (c *Comm) checkParts(whole, part, dst, src *tensor.Tensor) error {
	if err := checkBoth(dst, src); err != nil {
		return err
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
		panic(err) // mem has the size of t
	}
	return f
}
