package tcp

import (
	"errors"
	"time"
)

// wire returns the connection by which this rank sends to peer, or nil where all
// is closed or peer is not there any more. The lock is held.
func (m *mail) wire(peer int) *mailWire {
	w := m.wires[peer]
	if w == nil && !m.done && !m.closed && !m.suspects[peer] {
		m.trim()
		w = newWire(m, peer, true)
		m.wires[peer] = w
		m.host.wg.Go(func() { m.connect(w) })
	}
	if w != nil {
		w.used = time.Now()
	}
	return w
}

// connect dials the rank of a connection, and runs it.
func (m *mail) connect(w *mailWire) {
	f, err := m.host.dial(m.host.ctx, toMail, w.peer, m.host.address(w.peer))
	switch {
	case err == nil:
		w.run(f)
	case m.host.ctx.Err() != nil: // this rank closes, the other is well
		w.fail(nil)
	default:
		w.fail(err)
	}
}

// suspect is for a rank whose connection broke, or did not come about. It may
// have left, which the tree tells in better words: only where the tree is silent
// for long, that rank is lost. Until then nothing is sent to it.
func (m *mail) suspect(peer int) {
	m.mu.Lock()
	known := m.suspects[peer]
	m.suspects[peer] = true
	m.mu.Unlock()
	if known {
		return
	}
	m.host.wg.Go(func() {
		over, _ := m.host.node.World().Gone()
		limit := time.NewTimer(m.host.cfg.Timeout)
		defer limit.Stop()
		select {
		case <-over:
		case <-m.host.ctx.Done():
		case <-limit.C:
			m.host.node.Gone(peer, nil)
		}
	})
}

// accept takes a connection that a rank has dialled to send messages.
func (m *mail) accept(from int, f *framed) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errors.New("the group is closed")
	}
	w := newWire(m, from, false)
	m.others[w] = true
	m.host.wg.Go(func() { w.run(f) })
	return nil
}

// trim makes room for one more connection: of those that nothing needs, the ones
// that were used least recently end. The lock is held.
func (m *mail) trim() {
	for len(m.wires) >= m.keep {
		busy := m.busy()
		var oldest *mailWire
		for peer, w := range m.wires {
			if !busy[peer] && w.isQuiet() && (oldest == nil || w.used.Before(oldest.used)) {
				oldest = w
			}
		}
		if oldest == nil {
			return
		}
		m.end(oldest)
	}
}

// busy returns the ranks to which something is under way. The lock is held.
func (m *mail) busy() map[int]bool {
	peers := make(map[int]bool, len(m.wires))
	for l, o := range m.out {
		if o.users > 0 || o.room != laneWindow {
			peers[l.peer] = true
		}
	}
	return peers
}

// retire ends a dialled connection that was not used for the time given and is
// not needed.
func (m *mail) retire(w *mailWire, unused time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(w.used) <= unused || !w.isQuiet() || m.busy()[w.peer] {
		return false
	}
	m.end(w)
	return true
}

// isQuiet reports whether the connection is there and nothing is queued.
func (w *mailWire) isQuiet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err == nil && w.conn != nil && !w.last && len(w.queue) == 0
}

// isOver reports whether the connection has ended.
func (w *mailWire) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// end takes a dialled connection out of use. The lock is held.
func (m *mail) end(w *mailWire) {
	delete(m.wires, w.peer)
	m.others[w] = true
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last {
		w.sayQuit()
	}
}
