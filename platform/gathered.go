package platform

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
)

// OverAllGather returns the collective methods of [ObjectComm] and [Barrierer]
// made of AllGather alone, for platforms that have nothing better. All ranks get
// all bytes, whoever they are for. Send and Recv answer
// [errors.ErrUnsupported].
func OverAllGather(c AllGatherer) Gathered { return Gathered{c} }

// Gathered is what [OverAllGather] returns, to be embedded.
type Gathered struct{ AllGatherer }

var (
	_ ObjectComm = Gathered{}
	_ Barrierer  = Gathered{}
)

// Gather hands every rank's v to root.
func (c Gathered) Gather(ctx context.Context, g Group, root int, v []byte) ([][]byte, error) {
	vs, err := c.round(ctx, g, group.Call{Op: group.OpGather, Root: root}, v, nil)
	if err != nil || g.Rank() != root {
		return nil, err
	}
	return vs, nil
}

// Scatter hands vs[r] of root to rank r.
func (c Gathered) Scatter(ctx context.Context, g Group, root int, vs [][]byte) ([]byte, error) {
	var packed []byte
	var bad error
	if g != nil && g.Rank() == root {
		packed = pack(vs)
		bad = group.CheckScatter(len(vs), g.Size())
	}
	all, err := c.round(ctx, g, group.Call{Op: group.OpScatter, Root: root}, packed, bad)
	if err != nil {
		return nil, err
	}
	if vs, err = unpack(all[root]); err != nil {
		return nil, fmt.Errorf("scatter from rank %d: %w", root, err)
	}
	if err := group.CheckScatter(len(vs), g.Size()); err != nil {
		return nil, fmt.Errorf("scatter from rank %d: %w", root, err)
	}
	return vs[g.Rank()], nil
}

// Broadcast hands root's v to all ranks.
func (c Gathered) Broadcast(ctx context.Context, g Group, root int, v []byte) ([]byte, error) {
	if g != nil && g.Rank() != root {
		v = nil
	}
	vs, err := c.round(ctx, g, group.Call{Op: group.OpBroadcast, Root: root}, v, nil)
	if err != nil {
		return nil, err
	}
	return vs[root], nil
}

// Barrier returns once every rank has called it.
func (c Gathered) Barrier(ctx context.Context, g Group) error {
	_, err := c.round(ctx, g, group.Call{Op: group.OpBarrier}, nil, nil)
	return err
}

// Send returns an error that wraps [errors.ErrUnsupported].
func (Gathered) Send(context.Context, Group, int, int, []byte) error {
	return fmt.Errorf("send: %w", errors.ErrUnsupported)
}

// Recv returns an error that wraps [errors.ErrUnsupported].
func (Gathered) Recv(context.Context, Group, int, int) ([]byte, error) {
	return nil, fmt.Errorf("recv: %w", errors.ErrUnsupported)
}

// round tells all ranks which call this one makes, with which value, or what is
// wrong with it, and returns the values of all. Its outcome is the same on all
// ranks, because it depends on nothing but what all of them get.
func (c Gathered) round(ctx context.Context, g Group, call group.Call, v []byte, bad error) ([][]byte, error) {
	if err := needGroup(call.Op, g); err != nil {
		return nil, err
	}
	if bad == nil {
		bad = call.Check(g.Size())
	}
	msgs, err := c.AllGather(ctx, g, letter{call, v, bad}.encode())
	if err != nil {
		return nil, err
	}
	if err := group.CheckScatter(len(msgs), g.Size()); err != nil {
		return nil, fmt.Errorf("%s: all-gather returned %w", call.Op, err)
	}
	return open(call.Op, msgs)
}

// open returns the values in the letters of all ranks, unless they differ in
// their calls or tell of an error.
func open(op group.Op, msgs [][]byte) ([][]byte, error) {
	values := make([][]byte, len(msgs))
	var first letter
	for r, msg := range msgs {
		l, err := decodeLetter(msg)
		if err != nil {
			return nil, &group.Error{Op: op, Ranks: []int{r}, Err: err}
		}
		if r == 0 {
			first = l
		}
		if !l.call.Equal(first.call) {
			return nil, group.Mismatch(0, first.call, r, l.call)
		}
		if l.err != nil {
			return nil, &group.Error{Op: op, Ranks: []int{r}, Err: l.err}
		}
		values[r] = l.value
	}
	return values, nil
}
