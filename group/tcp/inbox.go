package tcp

import (
	"context"
	"fmt"
	"io"

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
	body    []byte
	missing int  // bytes that are yet to come
	held    int  // bytes that count against the lane's window
	here    bool // it is whole
}

// inLane returns the receiving side of a lane. The lock is held.
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
		if len(n.msgs) > 0 && n.msgs[0].here {
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
		if !g.here {
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

// deliver takes a piece whose body of size bytes is read from r.
func (m *mail) deliver(l letter, size int, r io.Reader, from *mailWire) error {
	slot, err := m.slot(l, size, from)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(r, slot); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.inLane(l.lane)
	last := n.msgs[len(n.msgs)-1]
	last.body = last.body[:len(last.body)+size]
	last.missing -= size
	last.here = last.missing == 0
	n.change()
	m.grant(l.lane, n)
	return nil
}

// slot returns where the body of a piece is to go: only who has read the earlier
// ones of a lane reads the next.
func (m *mail) slot(l letter, size int, from *mailWire) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.inLane(l.lane)
	n.from = from
	if l.first == n.isOpen() || l.total > m.host.cfg.MaxMessage {
		return nil, fmt.Errorf("piece of a message of %d bytes: %w", l.total, errFrame)
	}
	if l.first {
		n.msgs = append(n.msgs, &message{missing: l.total, body: make([]byte, 0, l.total)})
	}
	last := n.msgs[len(n.msgs)-1]
	if size > last.missing || n.holds()+size > laneWindow {
		return nil, fmt.Errorf("piece beyond its message or the window: %w", errFrame)
	}
	last.held += size
	return last.body[len(last.body) : len(last.body)+size], nil
}

// drop gives up the message of a lane that has begun.
func (m *mail) drop(l lane) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.inLane(l)
	if !n.isOpen() {
		return fmt.Errorf("end of a message that has not begun: %w", errFrame)
	}
	n.owed += n.msgs[len(n.msgs)-1].held
	n.msgs = n.msgs[:len(n.msgs)-1]
	n.change()
	m.grant(l, n)
	return nil
}

// isOpen reports whether the last message has begun and is not whole.
func (n *inLane) isOpen() bool {
	return len(n.msgs) > 0 && !n.msgs[len(n.msgs)-1].here
}

// change makes room for what somebody waits for, and wakes them.
func (n *inLane) change() {
	n.release()
	close(n.changed)
	n.changed = make(chan struct{})
}

// holds returns the bytes that count against the window.
func (n *inLane) holds() int {
	sum := n.owed
	for _, g := range n.msgs {
		sum += g.held
	}
	return sum
}
