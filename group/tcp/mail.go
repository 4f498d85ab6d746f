package tcp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

const (
	// laneWindow is how many bytes of a lane may be under way or wait to be
	// received.
	laneWindow = 1 << 20
	// maxLetter is the most of a message that one frame carries.
	maxLetter = 512 << 10
	// maxEager is the longest message that is copied rather than sent from
	// where it is. One is taken without waiting.
	maxEager = 64 << 10
	// messageCost is what a message takes of the window beside its bytes, so
	// that messages of none are bounded too.
	messageCost = 128
	// maxBacklog and maxBacklogLanes are how much of what another rank has sent
	// may wait without anybody who takes it: bytes with the cost of messages, and
	// lanes. A rank that sends more is broken.
	maxBacklog, maxBacklogLanes = 256 << 20, 64 << 10
	// maxWires is how many connections are kept for messages that are not
	// being sent any more.
	maxWires = 64
)

// mail is a rank's part in the messages of its groups. A rank sends by
// connections that it has dialled; what comes back by them is room for more.
type mail struct {
	host *host
	keep int     // maxWires, unless a test says otherwise
	most backlog // maxBacklog and maxBacklogLanes, unless a test says otherwise

	mu     sync.Mutex
	moved  sync.Cond          // on mu: a message is not busy any more
	out    map[lane]*outLane  // guarded by mu
	in     map[lane]*inLane   // guarded by mu
	waits  map[int]backlog    // by the rank that sent it; guarded by mu
	wires  map[int]*mailWire  // dialled, by rank; guarded by mu
	others map[*mailWire]bool // accepted, or dialled and not used any more; guarded by mu
	// suspects are ranks that may be lost; guarded by mu.
	suspects map[int]bool
	done     bool // nothing more is sent; guarded by mu
	closed   bool // nothing more is received either; guarded by mu
}

// outLane is the sending side of a lane. It is there while somebody sends or
// something is under way.
type outLane struct {
	users int
	turn  chan struct{} // holds an element while nobody sends
	room  int           // of laneWindow
	more  chan struct{} // closed when there is more room; nil unless awaited
}

func newMail(h *host) *mail {
	m := &mail{
		host: h, keep: maxWires, most: backlog{maxBacklog, maxBacklogLanes},
		out: make(map[lane]*outLane), in: make(map[lane]*inLane), waits: make(map[int]backlog),
		wires: make(map[int]*mailWire), others: make(map[*mailWire]bool), suspects: make(map[int]bool),
	}
	m.moved.L = &m.mu
	return m
}

func (m *mail) lane(g *Group, rank, tag int) lane {
	return lane{group: g.ID(), peer: g.Outer(rank), tag: tag}
}

// use returns the sending side of a lane for use until unuse, and the connection
// for it: nil to this rank itself, or where all is closed.
func (m *mail) use(l lane) (*outLane, *mailWire) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.out[l]
	if o == nil {
		o = &outLane{turn: make(chan struct{}, 1), room: laneWindow}
		o.turn <- struct{}{}
		m.out[l] = o
	}
	o.users++
	if l.peer == m.host.rank {
		return o, nil
	}
	return o, m.wire(l.peer)
}

func (m *mail) unuse(l lane, o *outLane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o.users--
	if w := m.wires[l.peer]; w != nil {
		w.used = time.Now()
	}
	m.forget(l, o)
}

// forget drops a lane on which nothing is under way. The lock is held.
func (m *mail) forget(l lane, o *outLane) {
	if o.users == 0 && o.room == laneWindow {
		delete(m.out, l)
	}
}

// takeRoom takes room for a piece with up to want bytes and returns how many, or
// a channel that is closed when there is more. Room for a few bytes only is left
// until there is more.
func (m *mail) takeRoom(o *outLane, first bool, want int) (int, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	free := o.room
	if first {
		free -= messageCost
	}
	if free < min(want, maxEager) {
		if o.more == nil {
			o.more = make(chan struct{})
		}
		return 0, o.more
	}
	n := min(want, free)
	o.room -= charge(first, n)
	return n, nil
}

// charge returns what a piece takes of the window.
func charge(first bool, n int) int {
	if first {
		return messageCost + n
	}
	return n
}

// granted notes that the receiver has room for n more bytes.
func (m *mail) granted(l lane, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.out[l]
	if o == nil || o.room+n > laneWindow {
		return fmt.Errorf("room for %d bytes that were not sent: %w", n, errFrame)
	}
	m.giveBack(l, o, n)
	return nil
}

// unTake gives back room that was not used.
func (m *mail) unTake(l lane, o *outLane, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.giveBack(l, o, n)
}

// giveBack adds to the room of a lane. The lock is held.
func (m *mail) giveBack(l lane, o *outLane, n int) {
	o.room += n
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	m.forget(l, o)
}

// flush returns when all that was sent has arrived, or some seconds later. What
// is sent from now on is not. It is for a rank that will leave the group: who
// learns of that has all its messages by then.
func (m *mail) flush() {
	m.mu.Lock()
	m.done = true
	all := slices.Collect(maps.Values(m.wires))
	m.mu.Unlock()
	m.finish(all)
}

// close ends all connections. The group is over by then.
func (m *mail) close() {
	m.mu.Lock()
	m.closed = true
	all := slices.Collect(maps.Values(m.wires))
	all = slices.AppendSeq(all, maps.Keys(m.others))
	m.mu.Unlock()
	m.finish(all)
}

// finish ends connections once what was sent by them is on its way, for which it
// waits some seconds at most. Once a rank is lost it does not wait: no call can
// receive what is under way.
func (m *mail) finish(all []*mailWire) {
	if len(all) == 0 {
		return
	}
	limit := time.NewTimer(m.host.cfg.partingTime())
	defer limit.Stop()
	over, loss := m.host.node.World().Gone()
	cut := func() {
		for _, w := range all {
			w.fail(nil)
		}
	}
	for _, w := range all {
		w.leave()
	}
	for _, w := range all {
		for !w.isOver() {
			select {
			case <-w.ended:
			case <-limit.C:
				cut()
			case <-over:
				over = nil
				if !errors.Is(loss(group.OpSend), group.ErrLeft) {
					cut()
				}
			}
		}
	}
}
