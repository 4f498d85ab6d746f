package tcp

import "fmt"

// backlog is what waits without anybody who takes it.
type backlog struct{ bytes, lanes int }

// charge counts what a piece takes of the window. What somebody takes may be
// followed by as much at once. The lock is held.
func (m *mail) charge(n *inLane, g *message, cost int) {
	if g.call != nil {
		n.owed += cost
		return
	}
	g.held += cost
	m.hold(n, cost)
}

// uncharge counts what a message holds as room. The lock is held.
func (m *mail) uncharge(n *inLane, g *message) {
	n.owed += g.held
	m.hold(n, -g.held)
	g.held = 0
}

// hold adds to what messages of a lane hold that nobody takes. The lock is held.
func (m *mail) hold(n *inLane, bytes int) {
	b, had := m.waits[n.lane.peer], n.held > 0
	n.held += bytes
	b.bytes += bytes
	switch has := n.held > 0; {
	case has && !had:
		b.lanes++
	case had && !has:
		b.lanes--
	}
	m.waits[n.lane.peer] = b
	if b == (backlog{}) {
		delete(m.waits, n.lane.peer)
	}
}

// checkBacklog returns an error where another rank has sent more than this one
// keeps for it. What this rank sends itself is its own affair. The lock is held.
func (m *mail) checkBacklog(peer int) error {
	b := m.waits[peer]
	if peer == m.host.rank || b.bytes <= m.most.bytes && b.lanes <= m.most.lanes {
		return nil
	}
	return fmt.Errorf("%d bytes with %d tags that nobody receives, more than %d with %d: %w",
		b.bytes, b.lanes, m.most.bytes, m.most.lanes, errFrame)
}
