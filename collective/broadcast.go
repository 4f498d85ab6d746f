package collective

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Broadcast replaces the elements of t on all ranks by those of rank root.
func (c *Comm) Broadcast(ctx context.Context, t *tensor.Tensor, root int) error {
	return c.do(ctx, c.broadcast(t, root))
}

// BroadcastAsync starts a [Comm.Broadcast].
func (c *Comm) BroadcastAsync(ctx context.Context, t *tensor.Tensor, root int) *Work {
	return c.start(ctx, c.broadcast(t, root))
}

func (c *Comm) broadcast(t *tensor.Tensor, root int) *task {
	k := &task{call: call{kind: broadcast, root: root}}
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
	k.call.algorithm = c.choose(broadcast, t.NumBytes(), t.NumBytes())
	if c.size == 1 {
		return k
	}
	var mem []byte
	if c.rank == root {
		mem = readable(t)
	} else {
		mem, k.settle = writable(t, false)
	}
	switch k.call.algorithm {
	case Eager:
		got := &token{ranks: c.size, after: (c.rank - root + c.size) % c.size, mem: mem}
		if c.rank != root { // what comes before all have agreed is not t's yet
			got.mem = make([]byte, len(mem))
			store := k.settle
			k.settle = func() error {
				copy(mem, got.mem)
				return settle(store)
			}
		}
		k.payload = got
	case Tree:
		k.run = func(ctx context.Context, x *exchange) error { return x.treeDown(ctx, mem, root) }
	case Ring:
		k.call.piece = c.o.PieceBytes
		k.run = func(ctx context.Context, x *exchange) error { return x.chain(ctx, mem, root) }
	}
	return k
}

// chain hands root's mem from rank to rank, a piece after the other.
func (x *exchange) chain(ctx context.Context, mem []byte, root int) error {
	tag, size := tagOf(x.seq, dataLane), x.o.PieceBytes
	n := pieces(len(mem), size)
	ready := make(tally, n)
	first, last := x.rank == root, x.at(1) == root
	send := func(ctx context.Context) error {
		for p := range n {
			if err := ready.take(ctx); err != nil {
				return err
			}
			if err := x.m.Send(ctx, x.at(1), tag, cut(mem, p, size)); err != nil {
				return err
			}
		}
		return nil
	}
	recv := func(ctx context.Context) error {
		for p := range n {
			if !first {
				if err := x.m.RecvInto(ctx, x.at(-1), tag, cut(mem, p, size)); err != nil {
					return err
				}
			}
			ready.add()
		}
		return nil
	}
	if last {
		return recv(ctx)
	}
	return duplex(ctx, send, recv)
}
