package tcp

import (
	"context"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
)

// Group is one rank's end of a group of processes. Collective calls are for one
// goroutine at a time; Send, Recv, Leave and Close are for any.
type Group struct {
	*tree.Group
	host *host
	sub  bool
}

var (
	_ group.Group     = (*Group)(nil)
	_ group.Alarmer   = (*Group)(nil)
	_ group.Messenger = (*Group)(nil)
	_ group.Leaver    = (*Group)(nil)
	_ group.Backed    = (*Group)(nil)
)

// Sub makes a group of some of this group's ranks. It needs no closing, but one
// that is not needed any more takes less memory closed.
func (g *Group) Sub(ctx context.Context, ranks []int) (group.Group, error) {
	sub, err := g.SubGroup(ctx, ranks)
	if sub == nil {
		return nil, err
	}
	return &Group{Group: sub, host: g.host, sub: true}, nil
}

// Backend returns "tcp".
func (g *Group) Backend() string { return "tcp" }

// Addr returns where this rank listens.
func (g *Group) Addr() string { return g.host.addr }

// Leave is [tree.Group.Leave]. Where the group is the one that [Join] returned,
// messages that this rank has sent arrive before the others learn of it, and it
// can send no more.
func (g *Group) Leave(err error) {
	if !g.sub {
		g.host.mail.flush()
	}
	g.Group.Leave(err)
}

// Close leaves the group and, where it is the one that [Join] returned, all made
// from it, and returns once the others have been told and all connections are
// closed. Messages that this rank has sent arrive before. Collective calls that
// other ranks make without this one, and messages that wait for it, fail with
// [group.ErrLeft].
func (g *Group) Close() error {
	if g.sub {
		g.Forget()
		return nil
	}
	g.host.close()
	return nil
}

// Send hands b to rank to.
func (g *Group) Send(ctx context.Context, to, tag int, b []byte) error {
	if err := group.CheckMessage(group.OpSend, to, tag, g.Size()); err != nil {
		return err
	}
	return g.host.mail.send(ctx, g, to, tag, b)
}

// Recv returns the next message that rank from sends to this one with tag.
func (g *Group) Recv(ctx context.Context, from, tag int) ([]byte, error) {
	if err := group.CheckMessage(group.OpRecv, from, tag, g.Size()); err != nil {
		return nil, err
	}
	return g.host.mail.recv(ctx, g, from, tag)
}

// RecvInto is Recv into b.
func (g *Group) RecvInto(ctx context.Context, from, tag int, b []byte) error {
	if err := group.CheckMessage(group.OpRecv, from, tag, g.Size()); err != nil {
		return err
	}
	return g.host.mail.recvInto(ctx, g, from, tag, b)
}
