package tcp

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

const (
	// laneWindow is how many bytes of a lane may be under way or wait to be
	// received.
	laneWindow = 1 << 20
	// maxLetter is the most of a message that one frame carries.
	maxLetter = 256 << 10
)

// mail is a rank's part in the messages of its groups. A rank sends by
// connections that it has dialled; what comes back by them is room for more.
type mail struct {
	host *host

	mu     sync.Mutex
	out    map[lane]*outLane  // guarded by mu
	in     map[lane]*inLane   // guarded by mu
	wires  map[int]*mailWire  // dialled, by rank; guarded by mu
	others map[*mailWire]bool // accepted; guarded by mu
	closed bool               // guarded by mu
}

// outLane is the sending side of a lane. It is there while somebody sends or
// something is under way.
type outLane struct {
	users int
	turn  chan struct{} // holds an element while nobody sends
	room  int           // bytes that may be sent
	more  chan struct{} // closed when there is more room
}

func newMail(h *host) *mail {
	return &mail{
		host: h, out: make(map[lane]*outLane), in: make(map[lane]*inLane),
		wires: make(map[int]*mailWire), others: make(map[*mailWire]bool),
	}
}

func (m *mail) lane(g *Group, rank, tag int) lane {
	return lane{group: g.ID(), peer: g.Outer(rank), tag: tag}
}

// send sends a message in pieces, as the receiver has room.
func (m *mail) send(ctx context.Context, g *Group, to, tag int, b []byte) error {
	ended := func() error {
		return &group.Error{Op: group.OpSend, Ranks: []int{to}, Err: group.ContextError(ctx)}
	}
	if ctx.Err() != nil {
		return ended()
	}
	if limit := m.host.cfg.MaxMessage; len(b) > limit {
		err := fmt.Errorf("message of %d bytes, more than %d: %w", len(b), limit, group.ErrInvalid)
		return &group.Error{Op: group.OpSend, Ranks: []int{to}, Err: err}
	}
	over, loss := g.Gone()
	l := m.lane(g, to, tag)
	o := m.use(l)
	defer m.unuse(l, o)
	select {
	case <-over:
		return loss(group.OpSend)
	default:
	}
	select {
	case <-o.turn:
		defer func() { o.turn <- struct{}{} }()
	case <-over:
		return loss(group.OpSend)
	case <-ctx.Done():
		return ended()
	}
	for off := 0; off == 0 || off < len(b); {
		n, more := m.takeRoom(o, len(b)-off)
		if n == 0 && len(b) > 0 {
			select {
			case <-more:
				continue
			case <-over:
				return loss(group.OpSend)
			case <-ctx.Done():
				if off > 0 {
					m.put(letter{kind: letterDrop, lane: l})
				}
				return ended()
			}
		}
		m.put(letter{kind: letterPiece, lane: l, first: off == 0, total: len(b), body: b[off : off+n]})
		off += max(n, 1)
	}
	return nil
}

// use returns the sending side of a lane for use until unuse.
func (m *mail) use(l lane) *outLane {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.out[l]
	if o == nil {
		o = &outLane{turn: make(chan struct{}, 1), room: laneWindow, more: make(chan struct{})}
		o.turn <- struct{}{}
		m.out[l] = o
	}
	o.users++
	return o
}

func (m *mail) unuse(l lane, o *outLane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o.users--
	m.forget(l, o)
}

// forget drops a lane on which nothing is under way. The lock is held.
func (m *mail) forget(l lane, o *outLane) {
	if o.users == 0 && o.room == laneWindow {
		delete(m.out, l)
	}
}

// takeRoom takes room for up to want bytes of one piece, or returns a channel
// that is closed when there is more.
func (m *mail) takeRoom(o *outLane, want int) (int, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(want, o.room, maxLetter)
	o.room -= n
	return n, o.more
}

// granted notes that the receiver has room for n more bytes.
func (m *mail) granted(l lane, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.out[l]
	if o == nil || o.room+n > laneWindow {
		return fmt.Errorf("room for %d bytes that were not sent: %w", n, errFrame)
	}
	o.room += n
	close(o.more)
	o.more = make(chan struct{})
	m.forget(l, o)
	return nil
}

// put hands a letter to the connection to its rank, or to this rank itself.
func (m *mail) put(l letter) {
	if l.lane.peer == m.host.rank {
		m.toItself(l)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.wire(l.lane.peer); w != nil {
		w.send(l.encode())
	}
}

// toItself delivers a letter of this rank to this rank. What it sends is well
// formed, so that there are no errors.
func (m *mail) toItself(l letter) {
	if l.kind == letterDrop {
		_ = m.drop(l.lane)
		return
	}
	_ = m.deliver(l, len(l.body), bytes.NewReader(l.body), nil)
}

// close ends all connections, once what was sent is on its way, and waits for
// that some seconds at most. The group is over by then.
func (m *mail) close() {
	m.mu.Lock()
	m.closed = true
	var all []*mailWire
	for _, w := range m.wires {
		all = append(all, w)
	}
	for w := range m.others {
		all = append(all, w)
	}
	m.mu.Unlock()
	limit := time.AfterFunc(min(m.host.cfg.Timeout, 5*time.Second), func() {
		for _, w := range all {
			w.fail(nil)
		}
	})
	defer limit.Stop()
	for _, w := range all {
		w.leave()
	}
	for _, w := range all {
		<-w.ended
	}
}
