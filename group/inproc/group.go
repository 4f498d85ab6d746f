// Package inproc makes groups of goroutines of one process, one for each rank. It copies no
// bytes: the ranks receive the slices that a rank passed in, so results are shared and
// read-only. The contract is in the comment of [group.Group].
package inproc

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// Group is one rank's end of a group. Its methods are for that rank's
// goroutine, except Leave, Send and Recv, which any goroutine may call.
type Group struct {
	group.Methods
	hub  *hub
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
	h := newHub(&world{active: make(map[*hub]struct{})}, nil, make([]int, max(n, 0)))
	gs := make([]*Group, len(h.ranks))
	for r := range gs {
		h.ranks[r] = r
		gs[r] = newGroup(h, r)
	}
	return gs
}

func newGroup(h *hub, rank int) *Group {
	g := &Group{hub: h}
	g.Methods = group.NewMethods(rank, g.do)
	return g
}

// Size returns the number of ranks.
func (g *Group) Size() int { return len(g.hub.ranks) }

// Ranks returns the members' numbers in the outermost group.
func (g *Group) Ranks() []int { return slices.Clone(g.hub.ranks) }

// Backend returns "inproc".
func (g *Group) Backend() string { return "inproc" }

// do takes part in this rank's next call and returns its results.
func (g *Group) do(ctx context.Context, call group.Call, values [][]byte) ([][]byte, group.Group, error) {
	if !g.busy.CompareAndSwap(false, true) {
		err := fmt.Errorf("call overlaps another of the same rank: %w", group.ErrInvalid)
		return nil, nil, &group.Error{Op: call.Op, Ranks: []int{g.Rank()}, Err: err}
	}
	defer g.busy.Store(false)

	c := g.hub.enter(g.next, deposit{call, g.Rank(), group.ContextError(ctx), values})
	g.next++
	select {
	case <-c.done:
	case <-ctx.Done():
		g.hub.end(c, g.Rank(), group.ContextError(ctx))
	}

	if c.err != nil {
		return nil, nil, c.err
	}

	switch i := slices.Index(call.Ranks, g.Rank()); {
	case call.Op == group.OpScatter:
		return c.values[g.Rank() : g.Rank()+1], nil, nil
	case call.Op == group.OpBroadcast:
		return c.values[call.Root : call.Root+1], nil, nil
	case call.Op == group.OpAllGather, call.Op == group.OpGather && g.Rank() == call.Root:
		return c.values, nil, nil
	case i >= 0:
		return nil, newGroup(c.sub, i), nil
	}

	return nil, nil, nil
}

// Leave marks this rank as gone from the group and from all groups made from
// it: calls of theirs that wait for it, and all later ones, fail at once with an
// error that names the rank and wraps [group.ErrLeft] and err, if that is
// not nil. Groups that this rank is not a member of go on. Leaving twice is the
// same as leaving once.
func (g *Group) Leave(err error) {
	cause := group.ErrLeft
	if err != nil {
		cause = fmt.Errorf("%w: %w", group.ErrLeft, err)
	}

	h := g.hub
	h.world.mu.Lock()
	defer h.world.mu.Unlock()

	outer := h.ranks[g.Rank()]
	if slices.ContainsFunc(h.left, func(d departure) bool { return d.rank == outer }) {
		return
	}

	h.left = append(h.left, departure{outer, cause})
	for a := range h.world.active {
		a.lose()
	}
}

// lose fails the undecided calls and raises the alarms of a group that has lost a
// rank, and wakes the calls that wait for messages. The lock is held.
func (h *hub) lose() {
	if lost := h.loss(); lost != nil {
		for _, c := range h.calls {
			c.fail(lost.error(h, c.first.Op))
		}
		for number := range h.alarms {
			h.raise(number)
		}
	}
	for _, m := range h.mail {
		m.change()
	}
}

var _ group.Alarmer = (*Group)(nil)

// alarm returns the channel that the alarm before the call of that number closes. The
// lock is held.
func (h *hub) alarm(number uint64) chan struct{} {
	if h.alarms[number] == nil {
		h.alarms[number] = make(chan struct{})
		h.note()
	}
	return h.alarms[number]
}

// raise raises the alarm before the call of that number, once. The lock is held.
func (h *hub) raise(number uint64) {
	a := h.alarm(number)
	select {
	case <-a:
	default:
		close(a)
	}
}

// Alarm tells the other ranks that this one has failed before its next call.
func (g *Group) Alarm() {
	g.hub.world.mu.Lock()
	defer g.hub.world.mu.Unlock()
	g.hub.raise(g.next)
}

// Alarmed returns a channel that is closed by the first Alarm before the rank's
// next call, and if a rank is gone.
func (g *Group) Alarmed() <-chan struct{} {
	g.hub.world.mu.Lock()
	defer g.hub.world.mu.Unlock()
	if g.hub.loss() != nil {
		g.hub.raise(g.next)
	}
	return g.hub.alarm(g.next)
}

var _ group.Messenger = (*Group)(nil)

const (
	// maxQueued bounds the bytes of one tag that wait to be received, if
	// they are more than one message.
	maxQueued = 1 << 20
	// messageCost is the number of bytes that a message counts in addition to its own.
	messageCost = 128
)

// route identifies the messages of a mailbox.
type route struct{ from, to, tag int }

// mailbox holds the messages of one route that wait to be received. It exists
// while it has messages or a call waits for one.
type mailbox struct {
	msgs    [][]byte
	bytes   int
	users   int
	changed chan struct{} // closed at the next change
}

// change wakes all that wait for m.
func (m *mailbox) change() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Send sends a copy of b to rank to.
func (g *Group) Send(ctx context.Context, to, tag int, b []byte) error {
	if err := group.CheckMessage(group.OpSend, to, tag, g.Size()); err != nil {
		return err
	}

	b = bytes.Clone(b)
	return g.hub.visit(ctx, group.OpSend, to, route{g.Rank(), to, tag}, func(m *mailbox, lost bool) bool {
		cost := messageCost + len(b)
		if lost || len(m.msgs) > 0 && m.bytes+cost > maxQueued {
			return false
		}
		m.msgs = append(m.msgs, b)
		m.bytes += cost
		return true
	})
}

// Recv returns the next message that rank from sent to this one with tag.
func (g *Group) Recv(ctx context.Context, from, tag int) ([]byte, error) {
	if err := group.CheckMessage(group.OpRecv, from, tag, g.Size()); err != nil {
		return nil, err
	}

	var got []byte
	err := g.hub.visit(ctx, group.OpRecv, from, route{from, g.Rank(), tag}, func(m *mailbox, _ bool) bool {
		if len(m.msgs) == 0 {
			return false
		}
		got = m.msgs[0]
		m.msgs = m.msgs[1:]
		m.bytes -= messageCost + len(got)
		return true
	})
	return got, err
}

// RecvInto is Recv into b.
func (g *Group) RecvInto(ctx context.Context, from, tag int, b []byte) error {
	got, err := g.Recv(ctx, from, tag)
	if err != nil {
		return err
	}
	if err := group.CheckLength(from, len(got), len(b)); err != nil {
		return err
	}
	copy(b, got)
	return nil
}

// patience is how long a message may be awaited from a rank that is there, when
// another one has left the group.
const patience = 20 * time.Second

// visit lets try at the mailbox of a route until it succeeds, the context has ended or a rank
// is gone. lost tells try that a rank is gone.
func (h *hub) visit(ctx context.Context, op group.Op, peer int, r route, try func(m *mailbox, lost bool) bool) error {
	w := h.world
	w.mu.Lock()
	defer w.mu.Unlock()

	m := h.mailbox(r)
	defer h.put(r, m)

	var limit <-chan time.Time // once a rank has left
	for {
		if err := group.ContextError(ctx); err != nil {
			return &group.Error{Op: op, Ranks: []int{peer}, Err: err}
		}

		lost := h.lossFor(r)
		if try(m, lost != nil) {
			m.change()
			return nil
		}
		if lost != nil {
			return lost.error(h, op)
		}

		if h.loss() != nil && limit == nil {
			t := time.NewTimer(patience)
			defer t.Stop()
			limit = t.C
		}

		changed := m.changed
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		case <-limit:
			w.mu.Lock()
			return h.loss().error(h, op)
		}

		w.mu.Lock()
	}
}

// lossFor returns the departure of a rank of the route, or nil. The lock is held.
func (h *hub) lossFor(r route) *departure {
	for a := h; a != nil; a = a.parent {
		for i, d := range a.left {
			if d.rank == h.ranks[r.from] || d.rank == h.ranks[r.to] {
				return &a.left[i]
			}
		}
	}
	return nil
}

// mailbox returns the mailbox of a route for use until put. The lock is held.
func (h *hub) mailbox(r route) *mailbox {
	m := h.mail[r]
	if m == nil {
		m = &mailbox{changed: make(chan struct{})}
		h.mail[r] = m
		h.note()
	}
	m.users++
	return m
}

// put ends a use of a mailbox. The lock is held.
func (h *hub) put(r route, m *mailbox) {
	m.users--
	if m.users == 0 && len(m.msgs) == 0 {
		delete(h.mail, r)
		h.note()
	}
}
