package tree

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
)

// Group is one rank's end of a group. Its methods are for one goroutine at a
// time, except Leave, which any goroutine may call.
type Group struct {
	team *team
	busy atomic.Bool // set during a call
}

var _ group.Group = (*Group)(nil)

// Rank returns this end's number in the group.
func (g *Group) Rank() int { return g.team.me }

// Size returns the number of ranks.
func (g *Group) Size() int { return g.team.ranks.size() }

// Ranks returns the members' numbers in the group of all ranks.
func (g *Group) Ranks() []int { return g.team.ranks.all() }

// Outer returns a member's number in the group of all ranks.
func (g *Group) Outer(rank int) int { return g.team.ranks.outer(rank) }

// ID returns a name of the group that no other of the tree has and that is the
// same on all its ranks.
func (g *Group) ID() [16]byte { return g.team.id }

// Gone returns a channel that is closed once the group is over, because a rank
// has gone, and a function that then returns the error of a call with that name.
func (g *Group) Gone() (<-chan struct{}, func(group.Op) *group.Error) {
	return g.team.over, func(op group.Op) *group.Error {
		g.team.node.mu.Lock()
		defer g.team.node.mu.Unlock()
		return g.team.lossOf(op)
	}
}

// Leave marks this rank as gone from the group and from all groups made from it:
// calls that wait for it, and all later ones, fail with an error that names the
// rank and wraps [group.ErrLeft] and err, if that is not nil. Leaving twice is
// the same as leaving once.
func (g *Group) Leave(err error) {
	cause := group.ErrLeft
	if err != nil {
		cause = fmt.Errorf("%w: %w", group.ErrLeft, err)
	}
	g.team.node.mu.Lock()
	defer g.team.node.mu.Unlock()
	g.team.leave(group.NewRemoteError(cause))
}

// Gather hands every rank's v to root.
func (g *Group) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	c, err := g.do(ctx, group.Call{Op: group.OpGather, Root: root}, g.own(v))
	if err != nil || g.Rank() != root {
		return nil, err
	}
	return c.all(), nil
}

// Scatter hands vs[r] of root to rank r.
func (g *Group) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	var parts []labelled
	if g.Rank() == root {
		parts = make([]labelled, len(vs))
		for r, v := range vs {
			parts[r] = labelled{r, v}
		}
	}
	c, err := g.do(ctx, group.Call{Op: group.OpScatter, Root: root}, parts)
	if err != nil {
		return nil, err
	}
	return c.one(g.Rank()), nil
}

// Broadcast hands root's v to all ranks.
func (g *Group) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	var own []labelled
	if g.Rank() == root {
		own = g.own(v)
	}
	c, err := g.do(ctx, group.Call{Op: group.OpBroadcast, Root: root}, own)
	if err != nil {
		return nil, err
	}
	return c.one(root), nil
}

// AllGather hands every rank's v to every rank.
func (g *Group) AllGather(ctx context.Context, v []byte) ([][]byte, error) {
	c, err := g.do(ctx, group.Call{Op: group.OpAllGather}, g.own(v))
	if err != nil {
		return nil, err
	}
	return c.all(), nil
}

// Barrier returns once every rank has called it.
func (g *Group) Barrier(ctx context.Context) error {
	_, err := g.do(ctx, group.Call{Op: group.OpBarrier}, nil)
	return err
}

// Sub makes a group of some of this group's ranks.
func (g *Group) Sub(ctx context.Context, ranks []int) (group.Group, error) {
	sub, err := g.SubGroup(ctx, ranks)
	if sub == nil {
		return nil, err
	}
	return sub, nil
}

// SubGroup is Sub for callers that need the type.
func (g *Group) SubGroup(ctx context.Context, ranks []int) (*Group, error) {
	c, err := g.do(ctx, group.Call{Op: group.OpSub, Ranks: slices.Clone(ranks)}, nil)
	if err != nil || c.sub == nil {
		return nil, err
	}
	return &Group{team: c.sub}, nil
}

func (g *Group) own(v []byte) []labelled { return []labelled{{g.Rank(), v}} }

// do takes part in this rank's next call and returns it once it has succeeded.
func (g *Group) do(ctx context.Context, call group.Call, values []labelled) (*call, error) {
	if !g.busy.CompareAndSwap(false, true) {
		err := fmt.Errorf("call overlaps another of the same rank: %w", group.ErrInvalid)
		return nil, &group.Error{Op: call.Op, Ranks: []int{g.Rank()}, Err: err}
	}
	defer g.busy.Store(false)
	c, err := g.team.join(ctx, call, values)
	if err != nil {
		return nil, err
	}
	c.wait(ctx)
	if c.err != nil {
		return nil, c.err
	}
	return c, nil
}

// all returns the values of a call that has succeeded, by rank.
func (c *call) all() [][]byte {
	vs := make([][]byte, c.team.ranks.size())
	for r := range vs {
		vs[r] = c.got[r]
	}
	for _, v := range c.inline() {
		vs[v.rank] = v.value
	}
	return vs
}

// one returns the value of that label.
func (c *call) one(label int) []byte {
	for _, v := range c.inline() {
		if v.rank == label {
			return v.value
		}
	}
	return c.got[label]
}

// inline returns the values that came with the outcome.
func (c *call) inline() []labelled {
	if c.going {
		return nil
	}
	return c.values
}

// Forget leaves the group as Leave does, and lets go of what this rank holds for
// it: only its name is kept, to know what comes late. Links stay, as they serve
// other groups too. The group of all ranks is only left.
func (g *Group) Forget() {
	g.Leave(nil)
	n := g.team.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if g.team.parent == nil {
		return
	}
	delete(n.teams, g.team.id)
	n.forgotten[g.team.id] = struct{}{}
}

// late reports whether a frame is of a group that this rank has forgotten. Room
// for its pieces is not given back: the other end has been told that the group is
// over. The lock is held.
func (n *Node) late(f frame) bool {
	_, ok := n.forgotten[f.id]
	return ok
}
