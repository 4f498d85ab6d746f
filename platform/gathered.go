package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// OverAllGather returns the collective methods of [ObjectComm] and [Barrierer]
// made of AllGather alone, for platforms that have nothing better. All ranks get
// all bytes, whichever rank they are for. Send and Recv answer
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
	msgs, err := c.AllGather(ctx, g, contribution{call, v, bad}.encode())
	if err != nil {
		return nil, err
	}
	if err := group.CheckScatter(len(msgs), g.Size()); err != nil {
		return nil, fmt.Errorf("%s: all-gather returned %w", call.Op, err)
	}
	return open(call.Op, msgs)
}

// open returns the values of all ranks, unless the ranks made different calls or
// one of them brought an error.
func open(op group.Op, msgs [][]byte) ([][]byte, error) {
	values := make([][]byte, len(msgs))
	var first contribution
	for r, msg := range msgs {
		c, err := decodeContribution(msg)
		if err != nil {
			return nil, &group.Error{Op: op, Ranks: []int{r}, Err: err}
		}
		if r == 0 {
			first = c
		}
		if !c.call.Equal(first.call) {
			return nil, group.Mismatch(0, first.call, r, c.call)
		}
		if c.err != nil {
			return nil, &group.Error{Op: op, Ranks: []int{r}, Err: c.err}
		}
		values[r] = c.value
	}
	return values, nil
}

// contribution is what a rank brings to a round.
type contribution struct {
	call  group.Call
	value []byte
	err   error // instead of a value
}

func (c contribution) encode() []byte {
	var w wire.Writer
	w.String(string(c.call.Op))
	w.Varint(int64(c.call.Root))
	return append(w.B, group.EncodeOutcome(c.value, c.err)...)
}

func decodeContribution(b []byte) (contribution, error) {
	r := wire.NewReader(b)
	c := contribution{call: group.Call{Op: group.Op(r.String()), Root: int(r.Varint())}}
	body := r.Raw(r.Len())
	if err := r.Done(); err != nil {
		return contribution{}, err
	}
	c.value, c.err = group.DecodeOutcome(body)
	return c, nil
}

func pack(vs [][]byte) []byte {
	var w wire.Writer
	w.Uvarint(uint64(len(vs)))
	for _, v := range vs {
		w.Bytes(v)
	}
	return w.B
}

// unpack returns what pack packed; the slices alias b.
func unpack(b []byte) ([][]byte, error) {
	r := wire.NewReader(b)
	vs := make([][]byte, r.Count(1))
	for i := range vs {
		vs[i] = r.Bytes()
	}
	return vs, r.Done()
}

// Comm returns g as a [group.Group], so that what takes one, saving and loading
// above all, runs on any platform: the group inside of g if it has one, else
// the platform's own methods. In that case Sub lists ranks in ascending order and
// makes the groups of [Groups.Split], which are shared by all ranks that list the same.
//
// The error for no group wraps [group.ErrInvalid]: a nil group.Group often stands
// for a rank on its own.
func Comm(p Platform, g Group) (group.Group, error) {
	if err := needGroup("comm", g); err != nil {
		return nil, err
	}
	if w, ok := g.(interface{ Unwrap() group.Group }); ok {
		return w.Unwrap(), nil
	}
	return &comm{Group: g, p: p}, nil
}

// comm is a group by the methods of a platform.
type comm struct {
	Group
	p Platform
}

var _ group.Group = (*comm)(nil)

func (c *comm) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	return c.p.Gather(ctx, c.Group, root, v)
}

func (c *comm) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	return c.p.Scatter(ctx, c.Group, root, vs)
}

func (c *comm) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	return c.p.Broadcast(ctx, c.Group, root, v)
}

func (c *comm) AllGather(ctx context.Context, v []byte) ([][]byte, error) {
	return c.p.AllGather(ctx, c.Group, v)
}

func (c *comm) Barrier(ctx context.Context) error { return c.p.Barrier(ctx, c.Group) }

func (c *comm) Sub(ctx context.Context, ranks []int) (group.Group, error) {
	var global []int
	err := group.Each(ctx, c, string(group.OpSub), func(context.Context) (err error) {
		global, err = c.ascending(ranks)
		return err
	})
	if err != nil { // on all ranks, so that none waits for this one
		return nil, &group.Error{Op: group.OpSub, Ranks: group.Ranks(err), Err: err}
	}
	sub, err := c.p.Split(ctx, c.Group, [][]int{global})
	if err != nil || sub == nil {
		return nil, err
	}
	return Comm(c.p, sub)
}

// ascending returns the numbers of the group's ranks in the group of all.
func (c *comm) ascending(ranks []int) ([]int, error) {
	global := make([]int, len(ranks))
	for i, r := range ranks {
		var err error
		if global[i], err = c.GlobalRank(r); err != nil {
			return nil, err
		}
	}
	if !slices.IsSorted(global) {
		return nil, fmt.Errorf("ranks %v are not in ascending order: %w", global, errors.ErrUnsupported)
	}
	return global, nil
}
