package tcp

import (
	"fmt"
	"runtime"
	"slices"
)

// inLane is the receiving side of a lane. It is there while it holds something
// or somebody waits. The first call takes the first message.
type inLane struct {
	lane  lane
	msgs  []*message
	calls []*receipt
	held  int       // of the window, by messages that nobody takes
	owed  int       // of the window, not yet granted
	from  *mailWire // by which it came; nil from this rank itself
}

// inLane returns the receiving side of a lane. The lock is held.
func (m *mail) inLane(l lane) *inLane {
	n := m.in[l]
	if n == nil {
		n = &inLane{lane: l}
		m.in[l] = n
	}
	return n
}

// open returns the last message, if it has begun and is not whole.
func (n *inLane) open() *message {
	if len(n.msgs) == 0 {
		return nil
	}
	if last := n.msgs[len(n.msgs)-1]; last.arrived < last.total {
		return last
	}
	return nil
}

// deliver takes a piece whose body of size bytes comes from fill, which may
// return less than it was asked for.
func (m *mail) deliver(l letter, size int, fill func([]byte) (int, error), from *mailWire) error {
	n, g, err := m.begin(l, size, from)
	if size > maxEager && err == nil {
		runtime.Gosched() // who has just got a message may ask for this one
	}
	for size > 0 && err == nil {
		slot := m.claim(g, size)
		var k int
		k, err = fill(slot)
		size -= k
		m.release(n, g, k)
	}
	return err
}

// begin finds the message of a piece, whose bytes are expected from now on.
func (m *mail) begin(l letter, size int, from *mailWire) (*inLane, *message, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.inLane(l.lane)
	for n.open() != nil && n.from != from && n.from != nil && !n.from.isOver() {
		// The sender has retired the connection by which the rest of its message
		// still comes, and sends the next by another.
		m.moved.Wait()
		n = m.inLane(l.lane)
	}
	g, cost := n.open(), charge(l.first, size)
	switch {
	case l.first != (g == nil), g != nil && n.from != from, l.total > m.host.cfg.MaxMessage:
		return nil, nil, fmt.Errorf("piece of a message of %d bytes: %w", l.total, errFrame)
	case n.held+n.owed+cost > laneWindow:
		return nil, nil, fmt.Errorf("piece of %d bytes beyond the window: %w", size, errFrame)
	}
	n.from = from
	if l.first {
		g = &message{total: l.total}
		n.msgs = append(n.msgs, g)
	}
	if size > g.total-g.arrived || size == 0 && g.total > 0 {
		return nil, nil, fmt.Errorf("piece of %d bytes of a message that lacks %d: %w", size, g.total-g.arrived, errFrame)
	}
	m.charge(n, g, cost)
	if l.first {
		m.serve(n) // somebody may wait for it
	}
	return n, g, m.checkBacklog(l.lane.peer)
}

// claim returns where up to size bytes that come next go, for use until release.
func (m *mail) claim(g *message, size int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	for g.busy || g.call != nil && g.call.leaving {
		m.moved.Wait()
	}
	g.busy = true
	return g.slot(size)
}

// release notes that k bytes have come, and hands over what can be.
func (m *mail) release(n *inLane, g *message, k int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g.advance(k)
	g.busy = false
	m.moved.Broadcast()
	m.serve(n)
}

// drop gives up the message of a lane that has begun.
func (m *mail) drop(l lane) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.inLane(l)
	g := n.open()
	if g == nil {
		return fmt.Errorf("end of a message that has not begun: %w", errFrame)
	}
	for g.busy {
		m.moved.Wait()
	}
	m.uncharge(n, g)
	n.msgs = n.msgs[:len(n.msgs)-1]
	g.call = nil
	g.discard()
	m.moved.Broadcast()
	m.grant(n)
	return nil
}

// serve lets the first call take what has come of the first message, and the
// next the next. Who makes a message one that is not busy calls it. The lock is
// held, and given up while bytes are copied.
func (m *mail) serve(n *inLane) {
	for len(n.msgs) > 0 && len(n.calls) > 0 {
		g, c := n.msgs[0], n.calls[0]
		if g.busy || c.leaving {
			break
		}
		g.call = c
		m.uncharge(n, g)
		m.place(g)
		if g.arrived < g.total || !g.placed {
			break
		}
		n.msgs, n.calls = n.msgs[1:], n.calls[1:]
		c.finish(g.dest)
	}
	m.grant(n)
}

// place moves what has come of a message to where it goes, if that is known.
func (m *mail) place(g *message) {
	if !g.placeable() {
		return
	}
	g.busy = true
	m.mu.Unlock()
	g.place()
	m.mu.Lock()
	g.busy = false
	m.moved.Broadcast()
}

// withdraw ends a call without a message, or reports that it has one.
func (m *mail) withdraw(n *inLane, c *receipt) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.leaving = true
	for !c.isDone() && len(n.msgs) > 0 && n.msgs[0].call == c {
		g := n.msgs[0]
		if !g.busy {
			m.takeBack(g)
			break
		}
		if n.from != nil {
			n.from.interrupt()
		}
		m.moved.Wait()
	}
	if c.isDone() {
		return false
	}
	n.calls = slices.DeleteFunc(n.calls, func(o *receipt) bool { return o == c })
	m.moved.Broadcast()
	m.serve(n)
	return true
}

// takeBack frees a message from the call that was to take it. The lock is held,
// and given up while bytes are copied.
func (m *mail) takeBack(g *message) {
	g.busy = true
	m.mu.Unlock()
	g.unplace()
	m.mu.Lock()
	g.busy = false
	g.call = nil
}

// grant tells the sender of the room that there is, when it is enough to be
// worth it or the lane is forgotten. The lock is held.
func (m *mail) grant(n *inLane) {
	idle := len(n.msgs) == 0 && len(n.calls) == 0
	if n.owed >= laneWindow/2 || idle && n.owed > 0 {
		owed := n.owed
		n.owed = 0
		if n.from != nil {
			n.from.send((&letter{kind: letterGrant, lane: n.lane, n: owed}).framed(true))
		} else if o := m.out[n.lane]; o != nil { // from this rank itself
			m.giveBack(n.lane, o, owed)
		}
	}
	if idle && m.in[n.lane] == n {
		delete(m.in, n.lane)
	}
}
