package host

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

// Group is a group of the platform's ranks.
type Group struct {
	platform.Members
	p      *Platform
	inner  group.Group
	id     identity
	closed atomic.Bool

	mu      sync.Mutex
	tensors *tensors // made when first asked for; guarded by mu
}

var _ platform.Group = (*Group)(nil)

func (p *Platform) newGroup(inner group.Group, ranks []int, id identity) *Group {
	return &Group{Members: platform.NewMembers(ranks, inner.Rank()), p: p, inner: inner, id: id}
}

// String returns the group's ranks, the first of them where they are many, and
// this rank's number among them, as in "host group [3 4], rank 1".
func (g *Group) String() string {
	return fmt.Sprintf("%s group %s, rank %d", Name, listText(g.Ranks()), g.Rank())
}

// Unwrap returns the group inside, for what takes a [group.Group].
func (g *Group) Unwrap() group.Group { return g.inner }

// Backend returns the name that the group inside has for itself, such as
// "inproc", "tcp" or "solo", and "other" where it is no [group.Backed].
func (g *Group) Backend() string {
	if b, ok := g.inner.(group.Backed); ok {
		return b.Backend()
	}
	return "other"
}

// leave takes this rank out of the group inside.
func (g *Group) leave() error {
	if g.closed.Swap(true) {
		return nil
	}
	switch in := g.inner.(type) {
	case io.Closer:
		return in.Close()
	case group.Leaver:
		in.Leave(nil)
	}
	return nil
}

// use returns the group for a call of that name.
func (p *Platform) use(op group.Op, g platform.Group) (*Group, error) {
	own, ok := g.(*Group)
	var err error
	switch {
	case g == nil || ok && own == nil:
		err = fmt.Errorf("no group; a rank that is no member has none: %w", group.ErrInvalid)
	case !ok || own.p != p:
		err = fmt.Errorf("a group of another platform: %w", group.ErrInvalid)
	case own.closed.Load():
		err = fmt.Errorf("this rank has closed the group: %w", group.ErrGone)
	default:
		return own, nil
	}
	return nil, &group.Error{Op: op, Ranks: []int{p.world.Rank()}, Err: err}
}
