package tcp

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// inLane is the receiving side of a lane. It is there while it holds something
// or somebody waits.
type inLane struct {
	msgs    []*message
	waiting int           // calls of Recv
	owed    int           // bytes of room not yet granted
	from    *mailWire     // by which it came; nil from this rank itself
	changed chan struct{} // closed at the next change
}

// message is a message of which a part has come.
type message struct {
	total int
	body  []byte
	held  int // bytes that count against the lane's window
}

func (g *message) whole() bool { return len(g.body) == g.total }

// lanes returns the receiving side of a lane. The lock is held.
func (m *mail) inLane(l lane) *inLane {
	n := m.in[l]
	if n == nil {
		n = &inLane{changed: make(chan struct{})}
		m.in[l] = n
	}
	return n
}

// recv returns the next message of a lane.
func (m *mail) recv(ctx context.Context, g *Group, from, tag int) ([]byte, error) {
	over, loss := g.Gone()
	l := m.lane(g, from, tag)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.inLane(l)
	n.waiting++
	defer func() {
		n.waiting--
		m.grant(l, n)
	}()
	for {
		if ctx.Err() != nil {
			return nil, &group.Error{Op: group.OpRecv, Ranks: []int{from}, Err: group.ContextError(ctx)}
		}
		if len(n.msgs) > 0 && n.msgs[0].whole() {
			got := n.msgs[0]
			n.msgs = n.msgs[1:]
			n.owed += got.held
			return got.body, nil
		}
		select {
		case <-over:
			m.mu.Unlock()
			err := loss(group.OpRecv)
			m.mu.Lock()
			return nil, err
		default:
		}
		n.release()
		m.grant(l, n)
		changed := n.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-over:
		case <-ctx.Done():
		}
		m.mu.Lock()
	}
}

// release makes room for the rest of a message that somebody waits for.
func (n *inLane) release() {
	for i, g := range n.msgs {
		if i >= n.waiting {
			return
		}
		if !g.whole() {
			n.owed += g.held
			g.held = 0
		}
	}
}

// grant tells the sender of the room that there is, when it is enough to be
// worth it or the lane is forgotten. The lock is held.
func (m *mail) grant(l lane, n *inLane) {
	idle := len(n.msgs) == 0 && n.waiting == 0
	if n.owed >= laneWindow/4 || idle && n.owed > 0 {
		m.giveRoom(l, n)
	}
	if idle {
		delete(m.in, l)
	}
}

func (m *mail) giveRoom(l lane, n *inLane) {
	owed := n.owed
	n.owed = 0
	if n.from != nil {
		n.from.send((&letter{kind: letterGrant, lane: l, n: owed}).encode())
		return
	}
	if o := m.out[l]; o != nil { // from this rank itself
		o.room += owed
		close(o.more)
		o.more = make(chan struct{})
		m.forget(l, o)
	}
}

// deliver takes what another rank, or this one, has sent.
func (m *mail) deliver(l letter, from *mailWire) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.inLane(l.lane)
	n.from = from
	var last *message
	if len(n.msgs) > 0 {
		last = n.msgs[len(n.msgs)-1]
	}
	open := last != nil && !last.whole()
	switch {
	case l.kind == letterDrop && open:
		n.owed += last.held
		n.msgs = n.msgs[:len(n.msgs)-1]
	case l.kind == letterDrop || l.first == open || l.total > m.host.cfg.MaxMessage:
		return fmt.Errorf("piece of a message of %d bytes: %w", l.total, errFrame)
	case l.first:
		last = &message{total: l.total, body: slices.Grow([]byte(nil), l.total)}
		n.msgs = append(n.msgs, last)
		fallthrough
	default:
		if len(last.body)+len(l.body) > last.total || n.holds()+len(l.body) > laneWindow {
			return fmt.Errorf("piece beyond its message or the window: %w", errFrame)
		}
		last.body = append(last.body, l.body...)
		last.held += len(l.body)
	}
	n.release()
	m.grant(l.lane, n)
	close(n.changed)
	n.changed = make(chan struct{})
	return nil
}

// holds returns the bytes that count against the window.
func (n *inLane) holds() int {
	sum := n.owed
	for _, g := range n.msgs {
		sum += g.held
	}
	return sum
}
