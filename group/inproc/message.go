package inproc

import (
	"bytes"
	"context"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

var _ group.Messenger = (*Group)(nil)

const (
	// maxQueued bounds the bytes of one tag that wait to be received, where
	// they are more than one message.
	maxQueued = 1 << 20
	// messageCost is what a message counts beside its bytes.
	messageCost = 128
)

// route is whose messages a mailbox holds.
type route struct{ from, to, tag int }

// mailbox holds the messages of one route that wait to be received. It is there
// while it has messages or somebody waits for it.
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

// Send hands a copy of b to rank to.
func (g *Group) Send(ctx context.Context, to, tag int, b []byte) error {
	if err := group.CheckMessage(group.OpSend, to, tag, g.Size()); err != nil {
		return err
	}
	b = bytes.Clone(b)
	return g.hub.visit(ctx, group.OpSend, to, route{g.rank, to, tag}, func(m *mailbox, lost bool) bool {
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
	err := g.hub.visit(ctx, group.OpRecv, from, route{from, g.rank, tag}, func(m *mailbox, _ bool) bool {
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

// visit lets try at the mailbox of a route until it has done what it wants, the
// context has ended or a rank is gone, which try is told.
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
		if h.mail == nil {
			h.mail = make(map[route]*mailbox)
		}
		h.mail[r] = m
		h.world.boxes(h)
	}
	m.users++
	return m
}

// put ends a use of a mailbox.
func (h *hub) put(r route, m *mailbox) {
	m.users--
	if m.users == 0 && len(m.msgs) == 0 {
		delete(h.mail, r)
	}
	if len(h.mail) == 0 {
		delete(h.world.mailed, h)
	}
}

// boxes notes that h has mailboxes, for a rank that leaves to wake who waits.
func (w *world) boxes(h *hub) {
	if w.mailed == nil {
		w.mailed = make(map[*hub]struct{})
	}
	w.mailed[h] = struct{}{}
}

// wake lets all that wait for messages look whether a rank is gone.
func (w *world) wake() {
	for h := range w.mailed {
		for _, m := range h.mail {
			m.change()
		}
	}
}
