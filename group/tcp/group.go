// Package tcp makes groups of processes, on one host or many, over TCP or unix
// sockets. It implements how ranks meet, authenticate and stay connected; package
// tree implements the collectives. The contract is in the comments of [group.Group]
// and [group.Messenger]; the protocol is below.
//
// # Meeting
//
// Rank 0 listens at the address of the [Rendezvous], or announces its address
// there. Each other rank connects to it once, sends its own address, receives the
// terms (the session, 16 random bytes; the arity; the timeout) and disconnects. So
// no connections are held while ranks are missing.
//
// A roll call checks that the registered ranks still run. Rank 0 makes one every
// second, or every few seconds with thousands of ranks, and when all ranks are
// registered. It connects to as many ranks as the arity and sends each a part of the
// list. Each of these calls the ranks of its part in the same way and answers with
// the ranks that it could not reach, which lose their slots. If the first rank of a
// part does not answer, the next rank of the part is called instead. A rank that is not
// called for three times as long registers again: rank 0 may be a new process. If the
// rank finds no rank 0 within the timeout, at least 20 s, it gives up. When a call has
// reached all ranks, the next call announces that they have met, with the
// address of the rank above each of them in the tree. Each rank then connects to the
// rank above it, and the first broadcast contains the addresses of all ranks.
//
// Other ranks reach a rank at the address that it sends, and rank 0 at the address
// of the rendezvous. A second process of a registered rank, processes that register
// after the meeting, and connections with another session are refused with a
// reason. A rank that missed the announcement registers again and receives it.
//
// # Errors
//
// Rank 0 decides which ranks the errors of [Join] name. If its context ends, it sends the
// error to all ranks that are registered or registering. If the context of another rank
// ends, that rank tells rank 0, which frees its slot and answers with the error. Without
// an answer for up to five seconds the rank uses the last call, which has the error too.
//
// The error names the ranks of one standing, the first of these that some rank has, and
// mentions the others:
//
//  1. missing: the rank has not registered, or no process listens at its address any more,
//     or a process that says that it is another one
//  2. no answer: the rank is registered or registering, and did not answer a call in time
//  3. gave up: the rank was registered, and its context has ended
//  4. the rank with the ended context, if all ranks are registered
//
// A rank that has not answered in time is never called missing, and neither is rank 0.
//
// # Handshake
//
// Every connection begins with a handshake, within ten seconds:
//
//	→ "cairngr3", the length of the rest (2 bytes), purpose (1: meet, 2: link,
//	  3: messages, 4: call of the roll, 5: leave), ranks from and to, size (4 bytes each),
//	  session (16; to meet and to leave, a name of the process), job and the address of the
//	  rank from (each with its length as a varint before it), nonce (32)
//	← nonce (32)
//	→ proof (32): HMAC-SHA-256 with the secret of "dial", all above and, under TLS,
//	  bytes exported from it, each after its length
//	← proof (32) of "accept", the same and the reason; length of the reason (2);
//	  the reason, which is empty if the connection is accepted
//
// The accepting side uses no field of the hello, and sends no proof, before it has verified
// the proof of the dialing side. Integers are little-endian. Frames follow: a length of 4
// bytes, and then that number of bytes, at most [tree.MaxFrame]. Only TLS encrypts frames.
//
// # Messages
//
// A rank dials the receiver when it first sends it a message, and keeps the
// connection until it was idle for a while or 64 other connections were used since.
// The messages of one group, sender and tag form a lane. At most 1 MiB of a lane is
// under way or waits to be received, including 128 bytes for each message; the
// receiver grants more when a call takes a message, or while a call waits for the
// rest of a message. The messages of one sender that no call has taken may have 256
// MiB, counted in the same way, in 65,536 lanes. If a rank sends more, the receiver
// closes the connection and reports that rank as gone, with the reason. Messages of a
// rank to itself are not bounded in this way.
//
// Large messages are written from the sender's memory and read into the receiver's,
// except for bytes that arrive before a call waits. See mailconn.go for the frames.
//
// The large values of collective calls are messages too, between neighbours in the
// tree, with a reserved tag. Their connections stay open while the group exists.
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

// Sub makes a group of some of this group's ranks. The caller need not close it, but
// closing it frees memory.
func (g *Group) Sub(ctx context.Context, ranks []int) (group.Group, error) {
	sub, err := g.Group.Sub(ctx, ranks)
	if sub == nil {
		return nil, err
	}
	return &Group{Group: sub.(*tree.Group), host: g.host, sub: true}, nil
}

// Backend returns "tcp".
func (g *Group) Backend() string { return "tcp" }

// Leave is [tree.Group.Leave]. If the group is the one that [Join] returned,
// messages that this rank has sent arrive before the other ranks are notified, and
// this rank can send no more messages.
func (g *Group) Leave(err error) {
	if !g.sub {
		g.host.mail.flush()
	}
	g.Group.Leave(err)
}

// Close leaves the group. If it is the group that [Join] returned, Close also leaves
// all groups made from it, waits until the messages that this rank has sent have
// arrived and the other ranks are notified, and closes all connections. Collective
// calls of the other ranks, and messages from or to this rank, then fail with
// [group.ErrLeft].
func (g *Group) Close() error {
	if g.sub {
		g.Forget()
		return nil
	}
	g.host.close()
	return nil
}

// Send sends b to rank to.
func (g *Group) Send(ctx context.Context, to, tag int, b []byte) error {
	if err := group.CheckMessage(group.OpSend, to, tag, g.Size()); err != nil {
		return err
	}
	return g.host.mail.send(g.waiter(ctx, group.OpSend, to), g.lane(to, tag), b)
}

// SendParts implements [group.PartSender].
func (g *Group) SendParts(ctx context.Context, to, tag int, parts [][]byte) error {
	if err := group.CheckMessage(group.OpSend, to, tag, g.Size()); err != nil {
		return err
	}
	return g.host.mail.send(g.waiter(ctx, group.OpSend, to), g.lane(to, tag), parts...)
}

// Recv returns the next message that rank from sends to this one with tag.
func (g *Group) Recv(ctx context.Context, from, tag int) ([]byte, error) {
	if err := group.CheckMessage(group.OpRecv, from, tag, g.Size()); err != nil {
		return nil, err
	}
	return g.host.mail.recv(g.waiter(ctx, group.OpRecv, from), g.lane(from, tag), false)
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

// waiter returns the waiter of a call that sends to or receives from peer.
func (g *Group) waiter(ctx context.Context, op group.Op, peer int) waiter {
	w := waiter{op: op, me: g.Rank(), peer: peer, ctx: ctx, patience: g.host.cfg.Timeout}
	w.over, w.loss = g.Gone()
	return w
}

// values sends and receives the values of a group's collective calls as messages.
type values struct {
	mail  *mail
	group [16]byte
}

var _ tree.Values = values{}

// valueTag is the tag of the messages that are values.
const valueTag = math.MaxInt

func (v values) lane(rank int) lane { return lane{group: v.group, peer: rank, tag: valueTag} }

// Send sends the parts to rank to, as one message.
func (v values) Send(ctx context.Context, to int, parts ...[]byte) error {
	return v.mail.send(waiter{op: group.OpSend, peer: to, ctx: ctx}, v.lane(to), parts...)
}

// Recv returns the next message from rank from.
func (v values) Recv(ctx context.Context, from int) ([]byte, error) {
	return v.mail.recv(waiter{op: group.OpRecv, peer: from, ctx: ctx}, v.lane(from), true)
}

// Release takes back a message that Recv returned.
func (values) Release(b []byte) { recycle(b) }

// Close drops the values that were not received, and values that arrive later.
func (v values) Close() { v.mail.discard(v.group) }
