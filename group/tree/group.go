package tree

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
)

// Group is one rank's end of a group. Its methods are for one goroutine at a
// time, except Leave, which any goroutine may call.
type Group struct {
	group.Methods
	team *team
	busy atomic.Bool // set during a call
}

var _ group.Group = (*Group)(nil)

func newGroup(t *team) *Group {
	g := &Group{team: t}
	g.Methods = group.NewMethods(t.me, g.do)
	return g
}

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

// do takes part in this rank's next call and returns its results.
func (g *Group) do(ctx context.Context, call group.Call, values [][]byte) ([][]byte, group.Group, error) {
	if !g.busy.CompareAndSwap(false, true) {
		err := fmt.Errorf("call overlaps another of the same rank: %w", group.ErrInvalid)
		return nil, nil, &group.Error{Op: call.Op, Ranks: []int{g.Rank()}, Err: err}
	}
	defer g.busy.Store(false)

	own := make([]labelled, len(values))
	for i, v := range values {
		own[i] = labelled{g.Rank(), v}
		if call.Op == group.OpScatter {
			own[i].rank = i
		}
	}

	c, err := g.team.join(ctx, call, own)
	if err != nil {
		return nil, nil, err
	}

	c.wait(ctx)
	switch {
	case c.err != nil:
		return nil, nil, c.err
	case call.Op == group.OpScatter:
		return [][]byte{c.one(g.Rank())}, nil, nil
	case call.Op == group.OpBroadcast:
		return [][]byte{c.one(call.Root)}, nil, nil
	case call.Op == group.OpAllGather, call.Op == group.OpGather && g.Rank() == call.Root:
		return c.all(), nil, nil
	case c.sub != nil:
		return nil, newGroup(c.sub), nil
	}

	return nil, nil, nil
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

// Forget leaves the group as Leave does, and frees this rank's memory for it: only its id is
// kept, so that late frames are dropped. Links stay, as they serve other groups too. The
// group of all ranks is only left.
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
