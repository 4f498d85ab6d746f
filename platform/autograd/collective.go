package autograd

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// communicate runs an operator that communicates over comm. If the graph has failed, or
// fails later, the other ranks of comm get an error instead of waiting for this rank.
func (g *Graph) communicate(comm platform.TensorComm, o Op) *Var {
	if !slices.Contains(g.comms, comm) {
		g.comms = append(g.comms, comm)
	}
	if g.err != nil {
		g.interrupt(g.err)
	}
	return g.Apply(o)
}

// interrupt breaks the communicators that the graph's operators have used.
func (s *shared) interrupt(cause error) {
	ended, end := context.WithCancelCause(context.Background())
	end(cause)
	for _, c := range s.comms {
		if c.Size() > 1 {
			_ = c.AllReduce(ended, zeros[float32](), collective.Sum) // the error is cause
		}
	}
}

// AllReduce returns the reduction of the x of all ranks: its sum, average, largest or
// smallest element. In the backward pass the gradient of a largest or smallest element is
// divided equally among the ranks that hold it. Other reductions have no gradient:
// [ErrGrad].
func (g *Graph) AllReduce(comm platform.TensorComm, x *Var, op platform.ReduceOp) *Var {
	extreme := op == collective.Max || op == collective.Min
	with := []platform.ReduceOp{collective.Sum, collective.Avg, collective.Max, collective.Min}
	return g.communicate(comm, Op{
		Name: "all-reduce", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if err := g.reducible(x, op, with); err != nil {
				return nil, nil, err
			}
			out := x.data.Clone()
			if err := comm.AllReduce(g.ctx, out, op); err != nil || !extreme {
				return out, nil, err
			}
			return out, []*tensor.Tensor{x.data, out}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			if err := hasGrad(op, with); err != nil {
				return nil, err
			}
			if extreme {
				d, err := pick(p.Grad.DType(), toHolders[float32], toHolders[float64])(p, comm)
				return []*tensor.Tensor{d}, err
			}
			d := p.Grad.Clone()
			return []*tensor.Tensor{d}, comm.AllReduce(p.Ctx, d, op)
		},
	})
}

// reducible returns an error if x needs a gradient and the reduction has no gradient.
func (g *Graph) reducible(x *Var, op platform.ReduceOp, with []platform.ReduceOp) error {
	if g.record && x.needs {
		return hasGrad(op, with)
	}
	return nil
}

// hasGrad returns an error if a reduction has no gradient. The backward pass asks again,
// because Forward does not run if a checkpoint has kept the result.
func hasGrad(op platform.ReduceOp, with []platform.ReduceOp) error {
	if !slices.Contains(with, op) {
		return fmt.Errorf("reduction by %v: %w", op, ErrGrad)
	}
	return nil
}

// toHolders returns the gradient of this rank's elements of which the largest or smallest
// of all ranks was taken.
func toHolders[F float](p *Pass, comm platform.TensorComm) (*tensor.Tensor, error) {
	d := zerosLike[F](p.Grad)
	own, all, out := values[F](p.Saved[0]), values[F](p.Saved[1]), values[F](d)
	n := len(out)
	both := zeros[F](2, int64(n)) // the gradient, and how many ranks hold the element
	sum, holders := values[F](both)[:n], values[F](both)[n:]
	copy(sum, values[F](p.Grad))

	held := func(i int) bool { return own[i] == all[i] || own[i] != own[i] } // NaN is the extreme
	for i := range holders {
		if held(i) {
			holders[i] = 1
		}
	}

	if err := comm.AllReduce(p.Ctx, both, collective.Sum); err != nil {
		return nil, err
	}

	for i := range out {
		if held(i) {
			out[i] = sum[i] / holders[i]
		}
	}

	return d, nil
}

// AllGatherConcat joins the x of all ranks along dimension dim, in the order of the ranks.
// length is the size of the result along dim. Each rank's x is the part of it that
// [tensor.CeilChunk] cuts for the rank, so the last ones may be smaller or empty. In the
// backward pass each rank gets the sum of the gradients of its part.
//
// If the parts follow each other in memory, as they do along dimension 0, and are of
// equal size, only elements that are sent or received are copied.
func (g *Graph) AllGatherConcat(comm platform.TensorComm, x *Var, dim int, length int64) *Var {
	c := cut{comm, resized(x.Shape(), dim, length), dim}
	return g.communicate(comm, Op{
		Name: "all-gather", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if err := c.check(); err != nil {
				return nil, nil, err
			}
			if lo, hi := c.part(comm.Rank()); x.Shape()[dim] != hi-lo {
				return nil, nil, fmt.Errorf("%v is not part %d of %d along dimension %d of %v: %w", x.Shape(), comm.Rank(), comm.Size(), dim, c.whole, ErrShape)
			}
			out, err := c.gather(g.ctx, x.data)
			return out, nil, err
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			d, err := c.scatter(p.Ctx, p.Grad, collective.Sum)
			return []*tensor.Tensor{d}, err
		},
	})
}

// ReduceScatter reduces the x of all ranks and returns this rank's part of the result
// along dimension dim, as [tensor.CeilChunk] cuts it. Sums and averages have gradients; the
// error for other reductions wraps [ErrGrad].
func (g *Graph) ReduceScatter(comm platform.TensorComm, x *Var, dim int, op platform.ReduceOp) *Var {
	c := cut{comm, x.Shape(), dim}
	with := []platform.ReduceOp{collective.Sum, collective.Avg}
	return g.communicate(comm, Op{
		Name: "reduce-scatter", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if err := cmp.Or(c.check(), g.reducible(x, op, with)); err != nil {
				return nil, nil, err
			}
			out, err := c.scatter(g.ctx, x.data, op)
			return out, nil, err
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			if err := hasGrad(op, with); err != nil {
				return nil, err
			}

			d := p.Grad
			if op == collective.Avg {
				d = d.Clone()
				pick(p.Grad.DType(), divide[float32], divide[float64])(d, comm.Size())
			}

			d, err := c.gather(p.Ctx, d)
			return []*tensor.Tensor{d}, err
		},
	})
}

// divide divides the elements of t, which is contiguous.
func divide[F float](t *tensor.Tensor, by int) {
	for i := range values[F](t) {
		values[F](t)[i] /= F(by)
	}
}

// cut says how dimension dim of a tensor is cut into parts, one for each rank of comm.
type cut struct {
	comm  platform.TensorComm
	whole []int64 // the shape of the tensor
	dim   int
}

func (c cut) check() error {
	if c.dim < 0 || c.dim >= len(c.whole) || c.whole[c.dim] < 0 {
		return fmt.Errorf("parts along dimension %d of %v: %w", c.dim, c.whole, ErrShape)
	}
	return nil
}

// resized returns a shape with another size of dimension dim.
func resized(shape []int64, dim int, size int64) []int64 {
	shape = slices.Clone(shape)
	if dim >= 0 && dim < len(shape) {
		shape[dim] = size
	}
	return shape
}

// part returns the part of rank r. That of rank 0 is the largest.
func (c cut) part(r int) (lo, hi int64) {
	return tensor.CeilChunk(c.whole[c.dim], int64(c.comm.Size()), int64(r))
}

// slot returns the shape of the largest part.
func (c cut) slot() []int64 {
	_, most := c.part(0)
	return resized(c.whole, c.dim, most)
}

// padded returns the size of dimension dim if all parts were as large as the largest.
func (c cut) padded() int64 { return c.slot()[c.dim] * int64(c.comm.Size()) }

// ordered reports whether the parts follow each other in memory.
func (c cut) ordered() bool { return product(c.whole[:c.dim]) == 1 }

// gather joins the parts of all ranks.
func (c cut) gather(ctx context.Context, part *tensor.Tensor) (*tensor.Tensor, error) {
	part, err := c.pad(part)
	if err != nil {
		return nil, err
	}

	shape := append([]int64{int64(c.comm.Size())}, c.slot()...)
	if c.ordered() {
		shape = resized(c.whole, c.dim, c.padded())
	}

	all, err := tensor.New(part.DType(), shape)
	if err != nil {
		return nil, err
	}

	if err := c.comm.AllGather(ctx, all, part); err != nil {
		return nil, err
	}
	if c.ordered() {
		return all.Slice(c.dim, 0, c.whole[c.dim], 1) // the padding is at the end
	}

	out, err := tensor.New(part.DType(), c.whole)
	if err != nil {
		return nil, err
	}
	return out, c.pairs(all, out, func(slot, part *tensor.Tensor) error { return tensor.Copy(part, slot) })
}

// pad returns a part that is as large as the largest.
func (c cut) pad(part *tensor.Tensor) (*tensor.Tensor, error) {
	if slices.Equal(part.Shape(), c.slot()) {
		return part, nil
	}

	out, err := tensor.New(part.DType(), c.slot())
	if err != nil {
		return nil, err
	}

	own, err := out.Slice(c.dim, 0, part.Shape()[c.dim], 1)
	if err != nil {
		return nil, err
	}
	return out, tensor.Copy(own, part)
}

// scatter reduces the whole tensors of all ranks and returns this rank's part, in memory
// of its own.
func (c cut) scatter(ctx context.Context, whole *tensor.Tensor, op platform.ReduceOp) (*tensor.Tensor, error) {
	slots := whole
	if !c.ordered() || c.padded() != c.whole[c.dim] {
		var err error
		if slots, err = tensor.New(whole.DType(), append([]int64{int64(c.comm.Size())}, c.slot()...)); err != nil {
			return nil, err
		}
		if err := c.pairs(slots, whole, func(slot, part *tensor.Tensor) error { return tensor.Copy(slot, part) }); err != nil {
			return nil, err
		}
	}

	out, err := tensor.New(whole.DType(), c.slot())
	if err != nil {
		return nil, err
	}

	if err := c.comm.ReduceScatter(ctx, out, slots, op); err != nil {
		return nil, err
	}

	lo, hi := c.part(c.comm.Rank())
	own, err := out.Slice(c.dim, 0, hi-lo, 1)
	if err == nil && !own.Contiguous() {
		own = own.Clone()
	}
	return own, err
}

// pairs calls f with each rank's part of whole and the beginning of its slot in slots,
// which has the slots one after the other.
func (c cut) pairs(slots, whole *tensor.Tensor, f func(slot, part *tensor.Tensor) error) error {
	mem, _ := slots.Bytes()
	size := len(mem) / c.comm.Size()
	for r := range c.comm.Size() {
		lo, hi := c.part(r)
		slot, err := tensor.FromBytes(slots.DType(), c.slot(), mem[r*size:(r+1)*size])
		if err == nil {
			slot, err = slot.Slice(c.dim, 0, hi-lo, 1)
		}
		if err != nil {
			return err
		}

		part, err := whole.Slice(c.dim, lo, hi, 1)
		if err == nil {
			err = f(slot, part)
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// Redistribute returns this rank's share, in the layout to, of a tensor of the given global
// shape, of which x is this rank's share in the layout from; see [platform.Redistribute].
// from may be a [shard.Placed] layout with outstanding reductions, [shard.Partial]. The
// ranks of the layouts are ranks of comm.
//
// In the backward pass gradients return to where the elements came from, and are summed
// where an element went to several ranks. Reductions other than "sum" and "avg" have no
// gradient: [ErrGrad].
func (g *Graph) Redistribute(comm platform.TensorComm, x *Var, shape []int64, from, to shard.Layout) *Var {
	shape = slices.Clone(shape)
	dtype := x.dtype()
	return g.communicate(comm, Op{
		Name: "redistribute", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			m, err := newMove(comm, shape, from, to, x.data, nil)
			if err == nil && m.Terms != nil && g.record && x.needs {
				err = hasTermGrad(m.Terms.Op())
			}
			if err != nil {
				return nil, nil, err
			}
			_, err = platform.Redistribute(g.ctx, comm, m)
			return m.Dst.Local(), nil, err
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			d := zeroGrad(p)
			grad := p.Grad
			if !grad.Contiguous() {
				grad = grad.Clone() // a flat layout needs it
			}

			m, err := newMove(comm, shape, from, to, d, grad)
			if err == nil && m.Terms != nil {
				err = hasTermGrad(m.Terms.Op()) // Forward does not run if a checkpoint has kept the result
			}
			if err != nil {
				return nil, err
			}
			return []*tensor.Tensor{d}, platform.RedistributeGrad(p.Ctx, comm, dtype, m)
		},
	})
}

// newMove returns the move of a tensor of which a rank holds src and gets dst, or memory
// for it if dst is nil.
func newMove(comm platform.TensorComm, shape []int64, from, to shard.Layout, src, dst *tensor.Tensor) (platform.Move, error) {
	var m platform.Move
	var err error
	if placed, ok := from.(shard.Placed); ok && placed.IsPartial() {
		m.Terms, err = shard.NewTerms(placed, shape, comm.Rank(), src)
	} else {
		m.Src, err = shard.New(from, shape, comm.Rank(), src)
	}
	if err != nil {
		return m, err
	}

	if dst == nil {
		m.Dst, err = shard.Empty(to, src.DType(), shape, comm.Rank())
	} else {
		m.Dst, err = shard.New(to, shape, comm.Rank(), dst)
	}
	return m, err
}

// hasTermGrad returns an error if a reduction by that name has no gradient.
func hasTermGrad(op string) error {
	if op != collective.Sum.String() && op != collective.Avg.String() {
		return fmt.Errorf("an outstanding reduction by %q: %w", op, ErrGrad)
	}
	return nil
}

// AllToAll cuts the elements of x, in row-major order, into equal parts, one for each rank,
// and returns the parts that all ranks have for this one, in the order of the ranks and in
// the given shape. In the backward pass the gradients return to where the elements came
// from.
func (g *Graph) AllToAll(comm platform.TensorComm, x *Var, shape ...int64) *Var {
	n := int64(comm.Size())
	return g.communicate(comm, Op{
		Name: "all-to-all", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			count, err := tensor.NumElements(shape)
			if err != nil || count != x.data.NumElements() || count%n != 0 {
				return nil, nil, fmt.Errorf("%v to %v by %d ranks: %w", x.Shape(), shape, n, ErrShape)
			}
			out, err := tensor.New(x.data.DType(), slices.Clone(shape))
			if err != nil {
				return nil, nil, err
			}
			return out, nil, comm.AllToAll(g.ctx, view(out, n, count/n), view(x.data, n, count/n), platform.Splits{})
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			d := zeroGrad(p)
			count := d.NumElements()
			return []*tensor.Tensor{d}, comm.AllToAll(p.Ctx, view(d, n, count/n), view(p.Grad, n, count/n), platform.Splits{})
		},
	})
}

// AllToAllSplits sends rows of x to all ranks and returns the rows that they send to this
// one, in the order of the ranks. In the backward pass the gradients of the rows return to
// where the rows came from.
func (g *Graph) AllToAllSplits(comm platform.TensorComm, x *Var, s platform.Splits) *Var {
	r := newShuffle(comm, s)
	return g.communicate(comm, Op{
		Name: "all-to-all", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			out, err := r.result(x.data)
			if err != nil {
				return nil, nil, err
			}
			return out, nil, comm.AllToAll(g.ctx, out, x.data, r.splits)
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			d := zeroGrad(p)
			return []*tensor.Tensor{d}, comm.AllToAll(p.Ctx, d, p.Grad, r.reverse())
		},
	})
}

// shuffle is an exchange of rows.
type shuffle struct {
	comm   platform.TensorComm
	splits platform.Splits
}

func newShuffle(comm platform.TensorComm, s platform.Splits) shuffle {
	return shuffle{comm, platform.Splits{In: slices.Clone(s.In), Out: slices.Clone(s.Out)}}
}

// result returns a tensor for the rows that come in exchange for the rows of x.
func (r shuffle) result(x *tensor.Tensor) (*tensor.Tensor, error) {
	shape := slices.Clone(x.Shape())
	if len(shape) == 0 {
		return nil, fmt.Errorf("rows of %v: %w", x, ErrShape)
	}

	if r.splits.Out != nil {
		shape[0] = 0
		for _, n := range r.splits.Out {
			shape[0] += n
		}
	}
	return tensor.New(x.DType(), shape)
}

// reverse returns the splits of the backward pass.
func (r shuffle) reverse() platform.Splits {
	return platform.Splits{In: r.splits.Out, Out: r.splits.In}
}

// Pending is the result of an operator that has not arrived yet. [Graph.Await] waits for
// it.
type Pending struct {
	shuffle shuffle
	arrives *Var // has memory that is not filled yet
	work    *platform.Work
	out     *Var // nil until Await
	back    *reverse
}

// reverse is the exchange of the backward pass.
type reverse struct {
	shape []int64 // of the operand
	work  *platform.Work
	grad  *tensor.Tensor
}

// AllToAllSplitsAsync starts an [Graph.AllToAllSplits]. The data of x must not be changed
// until [Graph.Await] has returned. A caller that does not call Await must end the
// context of the graph.
//
// The backward pass is asynchronous too: at Await it starts the exchange of the gradients,
// and here it waits for it. The operators between the two in the forward pass run in the
// backward pass while the gradients travel.
func (g *Graph) AllToAllSplitsAsync(comm platform.TensorComm, x *Var, s platform.Splits) *Pending {
	p := &Pending{shuffle: newShuffle(comm, s), back: &reverse{shape: x.Shape()}}
	back := p.back
	p.arrives = g.communicate(comm, Op{
		Name: "all-to-all", In: []*Var{x}, pending: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			out, err := p.shuffle.result(x.data)
			if err != nil {
				return nil, nil, err
			}
			p.work = comm.AllToAllAsync(g.ctx, out, x.data, p.shuffle.splits)
			return out, nil, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{back.grad}, back.work.Wait(p.Ctx)
		},
	})
	return p
}

// Await waits for a pending result and returns it. Further calls return it again. In the
// backward pass it starts the reverse exchange; see [Pending.Reverse].
func (g *Graph) Await(p *Pending) *Var {
	if p.out != nil {
		return p.out
	}

	shuffle, back := p.shuffle, p.back
	p.out = g.Apply(Op{
		Name: "all-to-all", In: []*Var{p.arrives}, Aliases: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if p.work == nil { // the result was kept by a checkpoint
				return p.arrives.data, nil, nil
			}
			return p.arrives.data, nil, p.work.Wait(g.ctx)
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			back.grad = zerosOf(p.Grad.DType(), back.shape)
			back.work = shuffle.comm.AllToAllAsync(p.Ctx, back.grad, p.Grad, shuffle.reverse())
			return []*tensor.Tensor{p.Grad}, nil
		},
	})
	return p.out
}

// Reverse returns the exchange of the gradients, or nil if the backward pass is not past
// [Graph.Await]. The backward pass waits for it; a hook that runs before may wait for it
// too.
func (p *Pending) Reverse() *platform.Work { return p.back.work }

// exchangeTag is the tag of the messages of Exchange.
const exchangeTag = collective.MaxTag

// Exchange sends x to rank peer and returns the tensor that peer sends to this rank, which
// has the same shape and dtype. In the backward pass the gradients are exchanged in the
// same way. The exchange with this rank itself is x.
//
// Both ranks must call it in the same order. The messages have the tag
// [collective.MaxTag]. If peer fails but does not leave the group, the wait for its tensor
// ends with the context of the graph.
func (g *Graph) Exchange(comm platform.TensorComm, x *Var, peer int) *Var {
	if peer == comm.Rank() {
		return x
	}

	swap := func(ctx context.Context, t *tensor.Tensor) (*tensor.Tensor, error) {
		out, err := tensor.New(t.DType(), t.Shape())
		if err != nil {
			return nil, err
		}
		sent := comm.ISend(ctx, t, peer, exchangeTag)
		err = comm.Recv(ctx, out, peer, exchangeTag)
		<-sent.Done() // until then t belongs to the call, which ends with ctx
		return out, cmp.Or(err, sent.Wait(ctx))
	}
	return g.communicate(comm, Op{
		Name: "exchange", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			out, err := swap(g.ctx, x.data)
			return out, nil, err
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			d, err := swap(p.Ctx, p.Grad)
			return []*tensor.Tensor{d}, err
		},
	})
}
