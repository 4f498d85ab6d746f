// Package inproc makes groups whose ranks are goroutines of one process. It
// copies no bytes: what one rank hands in is what the others get, so results
// are shared and read-only. The contract is that of [group.Group].
package inproc

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
)

// Group is one rank's end of a group. Its methods are for that rank's
// goroutine, except Leave, Send and Recv, which any goroutine may call.
type Group struct {
	hub  *hub
	rank int
	next uint64      // number of this rank's next call
	busy atomic.Bool // set during a call
}

var (
	_ group.Group  = (*Group)(nil)
	_ group.Leaver = (*Group)(nil)
	_ group.Backed = (*Group)(nil)
)

// New returns a group of n ranks, one end for each. It starts no goroutines and
// needs no closing.
func New(n int) []*Group {
	h := newHub(&world{alarms: make(map[*hub]struct{})}, nil, make([]int, max(n, 0)))
	gs := make([]*Group, len(h.ranks))
	for r := range gs {
		h.ranks[r] = r
		gs[r] = &Group{hub: h, rank: r}
	}
	return gs
}

// Rank returns this end's number in the group.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks.
func (g *Group) Size() int { return len(g.hub.ranks) }

// Ranks returns the members' numbers in the outermost group.
func (g *Group) Ranks() []int { return slices.Clone(g.hub.ranks) }

// Backend returns "inproc".
func (g *Group) Backend() string { return "inproc" }

// Gather hands every rank's v to root.
func (g *Group) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	c, err := g.do(ctx, deposit{Call: group.Call{Op: group.OpGather, Root: root}, value: v})
	if err != nil || g.rank != root {
		return nil, err
	}
	return c.values, nil
}

// Scatter hands vs[r] of root to rank r.
func (g *Group) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	c, err := g.do(ctx, deposit{Call: group.Call{Op: group.OpScatter, Root: root}, parts: vs})
	if err != nil {
		return nil, err
	}
	return c.values[g.rank], nil
}

// Broadcast hands root's v to all ranks.
func (g *Group) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	c, err := g.do(ctx, deposit{Call: group.Call{Op: group.OpBroadcast, Root: root}, value: v})
	if err != nil {
		return nil, err
	}
	return c.values[root], nil
}

// AllGather hands every rank's v to every rank. All of them get the same slice.
func (g *Group) AllGather(ctx context.Context, v []byte) ([][]byte, error) {
	c, err := g.do(ctx, deposit{Call: group.Call{Op: group.OpAllGather}, value: v})
	if err != nil {
		return nil, err
	}
	return c.values, nil
}

// Barrier returns once every rank has called it.
func (g *Group) Barrier(ctx context.Context) error {
	_, err := g.do(ctx, deposit{Call: group.Call{Op: group.OpBarrier}})
	return err
}

// Sub makes a group of some of this group's ranks.
func (g *Group) Sub(ctx context.Context, ranks []int) (group.Group, error) {
	ranks = slices.Clone(ranks) // compared with the lists of ranks that come later
	c, err := g.do(ctx, deposit{Call: group.Call{Op: group.OpSub, Ranks: ranks}})
	if err != nil {
		return nil, err
	}
	r := slices.Index(ranks, g.rank)
	if r < 0 {
		return nil, nil
	}
	return &Group{hub: c.sub, rank: r}, nil
}

// do takes part in this rank's next call and returns it once it has completed.
func (g *Group) do(ctx context.Context, d deposit) (*call, error) {
	if !g.busy.CompareAndSwap(false, true) {
		err := fmt.Errorf("call overlaps another of the same rank: %w", group.ErrInvalid)
		return nil, &group.Error{Op: d.Op, Ranks: []int{g.rank}, Err: err}
	}
	defer g.busy.Store(false)
	d.rank, d.ended = g.rank, group.ContextError(ctx)
	c := g.hub.enter(g.next, d)
	g.next++
	select {
	case <-c.done:
	case <-ctx.Done():
		g.hub.end(c, d.rank, group.ContextError(ctx))
	}
	if c.err != nil {
		return nil, c.err
	}
	return c, nil
}
