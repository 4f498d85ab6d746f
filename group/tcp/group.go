// Package tcp makes groups of processes, on one host or many, over TCP or unix
// sockets. It implements how ranks meet, authenticate and stay connected; package
// tree implements the collectives. The contract is that of [group.Group] and
// [group.Messenger]; the protocol is below.
//
// # Meeting
//
// Rank 0 listens at the address of the [Rendezvous], or announces its address
// there. Each other rank connects to it once, sends its own address, receives the
// terms (the session, 16 random bytes; the arity; the timeout) and disconnects. So
// no connections are held while ranks are missing.
//
// Rank 0 calls the roll of the registered ranks every second, or every few seconds
// with thousands of ranks, and when all are registered. It connects to as many ranks
// as the arity and gives each a part of the list. Each of these calls the ranks of
// its part in the same way and answers with the ranks that it could not reach, which
// lose their slots. If the first rank of a part does not answer, the next one takes
// its place. A call names the missing ranks, so that a rank whose context ends can
// name them in its error; if it knows of no missing rank, it asks rank 0 once more.
// A rank that is not called for three times as long registers again: rank 0 may be a
// new process. If it finds no rank 0 within the timeout, at least 20 s, it gives up.
// If the context of rank 0 ends, rank 0 sends the missing ranks to all ranks that
// are registered or registering. When a call has reached all ranks, the next call
// announces that they have met, with the address of the rank above each of them in
// the tree. Ranks then connect to the rank above, and the addresses of all ranks are
// the first broadcast.
//
// Other ranks reach a rank at the address that it sends, and rank 0 at the address
// of the rendezvous. A second process of a registered rank, processes that come
// after the meeting, and connections with another session are refused with a
// reason. A rank that missed the announcement asks again and receives it.
//
// # Handshake
//
// Every connection begins with a handshake, within ten seconds:
//
//	→ "cairngr2", the length of what follows (2 bytes), purpose (1: meet, 2: link,
//	  3: messages, 4: call of the roll), ranks from and to, size (4 bytes each),
//	  session (16; to meet, a name of the process), job and the address of the
//	  rank from (each with its length as a varint before it), nonce (32)
//	← nonce (32)
//	→ proof (32): HMAC-SHA-256 with the secret of "dial", all above and, under TLS,
//	  bytes exported from it, each behind its length
//	← proof (32) of "accept", the same and the reason; length of the reason (2);
//	  reason. An empty one lets the connection in
//
// The accepting side proves itself only after the dialing side has, and trusts
// nothing before. Integers are little-endian. Frames follow: a length of 4 bytes,
// and then that number of bytes, at most [tree.MaxFrame]. Only TLS encrypts frames.
//
// # Messages
//
// A rank dials the receiver when it first sends it a message, and keeps the
// connection until it was idle for a while or 64 other connections were used since.
// Messages of one group, sender and tag are a lane. At most 1 MiB of a lane is under
// way or waits to be received, including 128 bytes for each message; the receiver
// grants more when a call takes a message, or while a call waits for the rest of
// one. The messages of a rank that no call has taken may have 256 MiB, counted in
// the same way, in lanes of 65,536 tags. A rank that sends more is refused as
// broken, and the error has the reason. Messages of a rank to itself are not bounded
// in this way.
//
// Large messages are written from the sender's memory and read into the receiver's,
// except for bytes that arrive before a call waits. See mailconn.go for the frames.
//
// The large values of collective calls are messages too, between neighbours in the
// tree, with a tag of their own. Their connections stay open while the group exists.
//
// # Liveness
//
// Both ends of a connection send a keep-alive four times in a timeout. If a
// connection is silent for the timeout, or breaks, its rank is gone, and package
// tree reports that to all ranks.
package tcp

import (
	"context"
	"math"

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
	sub, err := g.Group.Sub(ctx, ranks)
	if sub == nil {
		return nil, err
	}
	return &Group{Group: sub.(*tree.Group), host: g.host, sub: true}, nil
}

// Backend returns "tcp".
func (g *Group) Backend() string { return "tcp" }

// Addr returns where this rank listens.
func (g *Group) Addr() string { return g.host.addr }

// Leave is [tree.Group.Leave]. If the group is the one that [Join] returned,
// messages that this rank has sent arrive before the others learn of it, and it
// can send no more.
func (g *Group) Leave(err error) {
	if !g.sub {
		g.host.mail.flush()
	}
	g.Group.Leave(err)
}

// Close leaves the group and, if it is the one that [Join] returned, all made
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
	return g.host.mail.send(g.waiter(ctx, group.OpSend, to), g.lane(to, tag), b)
}

// Recv returns the next message that rank from sends to this one with tag.
func (g *Group) Recv(ctx context.Context, from, tag int) ([]byte, error) {
	if err := group.CheckMessage(group.OpRecv, from, tag, g.Size()); err != nil {
		return nil, err
	}
	return g.host.mail.recv(g.waiter(ctx, group.OpRecv, from), g.lane(from, tag))
}

// RecvInto is Recv into b.
func (g *Group) RecvInto(ctx context.Context, from, tag int, b []byte) error {
	if err := group.CheckMessage(group.OpRecv, from, tag, g.Size()); err != nil {
		return err
	}
	return g.host.mail.recvInto(g.waiter(ctx, group.OpRecv, from), g.lane(from, tag), b)
}

// lane returns the lane of the messages with a rank and a tag.
func (g *Group) lane(rank, tag int) lane { return lane{group: g.ID(), peer: g.Outer(rank), tag: tag} }

// waiter returns how a call for messages with a rank waits.
func (g *Group) waiter(ctx context.Context, op group.Op, peer int) waiter {
	w := waiter{op: op, me: g.Rank(), peer: peer, ctx: ctx, patience: g.host.cfg.Timeout}
	w.over, w.loss = g.Gone()
	return w
}

// values carries the values of the collective calls of a group as messages.
type values struct {
	mail  *mail
	group [16]byte
}

var _ tree.Values = values{}

// valueTag is the tag of the messages that are values.
const valueTag = math.MaxInt

func (v values) lane(rank int) lane { return lane{group: v.group, peer: rank, tag: valueTag} }

// Send hands b to rank to.
func (v values) Send(ctx context.Context, to int, b []byte) error {
	return v.mail.send(waiter{op: group.OpSend, peer: to, ctx: ctx}, v.lane(to), b)
}

// Recv returns the next message from rank from.
func (v values) Recv(ctx context.Context, from int) ([]byte, error) {
	return v.mail.recv(waiter{op: group.OpRecv, peer: from, ctx: ctx}, v.lane(from))
}

// Close drops what was not received, and what comes later.
func (v values) Close() { v.mail.discard(v.group) }
