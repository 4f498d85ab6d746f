package tcp

import (
	"bytes"
	"context"
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
	// maxPiece bounds the bytes of a message in one frame.
	maxPiece = 512 << 10
	// maxEager is the size of the largest message that is copied to be sent. Larger
	// messages are sent from the caller's memory.
	maxEager = 64 << 10
	// messageCost is the number of bytes of the window that a message takes in addition
	// to its own, so that empty messages are bounded too.
	messageCost = 128
	// maxBacklog and maxBacklogLanes bound the messages of another rank that no call
	// takes: their bytes, including messageCost for each message, and their lanes. A
	// rank that sends more is treated as gone.
	maxBacklog, maxBacklogLanes = 256 << 20, 64 << 10
	// maxConns bounds the number of dialled connections that are kept while no message
	// is sent over them.
	maxConns = 64
)

// mail sends and receives the messages of one rank, in all its groups. A rank sends
// messages over connections that it has dialled, and receives grants over them.
type mail struct {
	host *host
	keep int     // maxConns; tests change it
	most backlog // maxBacklog and maxBacklogLanes; tests change it

	mu      sync.Mutex
	moved   sync.Cond          // on mu: a message is not busy any more
	out     map[lane]*outLane  // guarded by mu
	in      map[lane]*inLane   // guarded by mu
	waits   map[int]backlog    // by the rank that sent it; guarded by mu
	dialled map[int]*mailConn  // dialled, by rank; guarded by mu
	others  map[*mailConn]bool // accepted, or dialled and retired; guarded by mu
	// suspects are ranks that may be lost; guarded by mu.
	suspects map[int]bool
	dropped  map[[16]byte]bool // groups that drop their values; guarded by mu
	done     bool              // no more messages are sent; guarded by mu
	closed   bool              // no more messages are received either; guarded by mu
}

// outLane is the sending side of a lane. It exists while a call sends or bytes are under
// way.
type outLane struct {
	users int
	turn  chan struct{} // holds an element while no call sends
	room  int           // bytes of laneWindow that may be sent
	more  chan struct{} // closed when there is more room; nil unless awaited
}

func newMail(h *host) *mail {
	m := &mail{
		host: h, keep: maxConns, most: backlog{maxBacklog, maxBacklogLanes},
		out: make(map[lane]*outLane), in: make(map[lane]*inLane), waits: make(map[int]backlog),
		dialled: make(map[int]*mailConn), others: make(map[*mailConn]bool), suspects: make(map[int]bool),
		dropped: make(map[[16]byte]bool),
	}
	m.moved.L = &m.mu
	return m
}

// use returns the sending side of a lane for use until unuse, and its connection. The
// connection is nil if the receiver is this rank itself, or if mail is closed.
func (m *mail) use(l lane) (*outLane, *mailConn) {
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
	return o, m.connTo(l.peer)
}

func (m *mail) unuse(l lane, o *outLane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o.users--
	if w := m.dialled[l.peer]; w != nil {
		w.used = time.Now()
	}
	m.forget(l, o)
}

// forget removes a lane without messages under way. The lock is held.
func (m *mail) forget(l lane, o *outLane) {
	if o.users == 0 && o.room == laneWindow {
		delete(m.out, l)
	}
}

// takeRoom takes room for a piece of up to want bytes and returns the number of bytes. If
// there is little room, it takes none and returns a channel that is closed when there is
// more.
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

// charge returns the number of bytes of the window that a piece takes.
func charge(first bool, n int) int {
	if first {
		return messageCost + n
	}
	return n
}

// granted records that the receiver has room for n more bytes.
func (m *mail) granted(l lane, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.out[l]
	if o == nil || o.room+n > laneWindow {
		return fmt.Errorf("grant of %d bytes that were not sent: %w", n, errFrame)
	}
	m.giveBack(l, o, n)
	return nil
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

// flush waits a few seconds at most until all messages that were sent have arrived. No
// message can be sent after that. It is for a rank that will leave the group: the other
// ranks have all its messages before they are notified.
func (m *mail) flush() {
	m.mu.Lock()
	m.done = true
	all := slices.Collect(maps.Values(m.dialled))
	m.mu.Unlock()
	m.finish(all)
}

// close ends all connections. The group is over by then.
func (m *mail) close() {
	m.mu.Lock()
	m.closed = true
	all := slices.Collect(maps.Values(m.dialled))
	all = slices.AppendSeq(all, maps.Keys(m.others))
	m.mu.Unlock()
	m.finish(all)
}

// finish ends connections once all frames that were queued on them are written, for
// which it waits a few seconds at most. If a rank is lost, it does not wait: no call
// can receive the messages that are under way.
func (m *mail) finish(all []*mailConn) {
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

// connTo returns the connection over which this rank sends to peer, or nil if mail is
// closed or peer is gone. The lock is held.
func (m *mail) connTo(peer int) *mailConn {
	w := m.dialled[peer]
	if w == nil && !m.done && !m.closed && !m.suspects[peer] {
		m.trim()
		w = newMailConn(m, peer, true)
		m.dialled[peer] = w
		m.host.wg.Go(func() { m.connect(w) })
	}

	if w != nil {
		w.used = time.Now()
	}
	return w
}

// connect dials the rank of a connection, and runs it.
func (m *mail) connect(w *mailConn) {
	f, err := m.host.dial(m.host.ctx, toMail, w.peer, m.host.address(w.peer))
	switch {
	case err == nil:
		w.run(f)
	case m.host.ctx.Err() != nil: // this rank closes; peer is not lost
		w.fail(nil)
	default:
		w.fail(err)
	}
}

// suspect handles a rank after its connection broke or could not be made. The rank may have
// left, which the tree reports with a better reason. Only if the tree does not report it
// within the timeout, suspect reports the rank as gone. Until then it gets no messages.
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
func (m *mail) accept(from int, f *conn) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errors.New("the group is closed")
	}
	w := newMailConn(m, from, false)
	m.others[w] = true
	m.host.wg.Go(func() { w.run(f) })
	return nil
}

// trim ends the unneeded connections that were used least recently, so that there is
// room for one more. The lock is held.
func (m *mail) trim() {
	for len(m.dialled) >= m.keep {
		busy := m.busy()
		var oldest *mailConn
		for peer, w := range m.dialled {
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
	peers := make(map[int]bool, len(m.dialled))
	for l, o := range m.out {
		if o.users > 0 || o.room != laneWindow {
			peers[l.peer] = true
		}
	}
	return peers
}

// retire ends a dialled connection that is not needed and was not used for the given
// time.
func (m *mail) retire(w *mailConn, unused time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(w.used) <= unused || !w.isQuiet() || m.busy()[w.peer] {
		return false
	}
	m.end(w)
	return true
}

// isQuiet reports whether the connection is connected and has an empty queue.
func (w *mailConn) isQuiet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err == nil && w.conn != nil && !w.last && len(w.queue) == 0
}

// isOver reports whether the connection has ended.
func (w *mailConn) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// end takes a dialled connection out of use. The lock is held.
func (m *mail) end(w *mailConn) {
	delete(m.dialled, w.peer)
	m.others[w] = true
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last {
		w.queueQuit()
	}
}

// sendCall is a call of Send.
type sendCall struct {
	waiter
	mail *mail
	lane lane
	out  *outLane
	wire *mailConn // nil: the receiver is this rank itself

	parts   [][]byte // the message
	total   int      // its bytes
	at, off int      // the next byte to send is parts[at][off]
}

// send sends the parts as one message, in pieces, as the receiver has room.
func (m *mail) send(w waiter, l lane, parts ...[]byte) error {
	s := &sendCall{waiter: w, mail: m, lane: l, parts: parts}
	for _, p := range parts {
		s.total += len(p)
	}

	if w.ctx.Err() != nil {
		return s.ended()
	}
	if limit := m.limit(l); s.total > limit {
		return s.error(fmt.Errorf("message of %d bytes, more than %d: %w", s.total, limit, group.ErrInvalid))
	}

	s.out, s.wire = m.use(s.lane)
	defer m.unuse(s.lane, s.out)

	if s.wire == nil && l.peer != m.host.rank {
		return s.wait(nil, nil) // this rank closes, or the other rank is gone
	}
	if err := s.check(); err != nil {
		return err
	}

	if err := s.wait(s.out.turn, nil); err != nil {
		return err
	}
	defer func() { s.out.turn <- struct{}{} }()

	if s.borrows() {
		defer context.AfterFunc(w.ctx, func() { s.wire.stop(s) })()
	}
	return s.pieces()
}

// borrows reports whether the message is written from the caller's memory. TLS copies it
// anyway, and cannot be interrupted while it writes.
func (s *sendCall) borrows() bool {
	return s.wire != nil && s.total > maxEager && s.mail.host.cfg.TLS == nil
}

// pieces sends the message in pieces. If it cannot send the rest of a message, it gives
// the message up.
func (s *sendCall) pieces() error {
	most := maxCopied
	if s.borrows() {
		most = maxPiece
	}

	for off, begun := 0, false; !begun || off < s.total; begun = true {
		n, err := s.room(!begun, min(s.total-off, most))
		if err == nil {
			err = s.put(frame{kind: framePiece, lane: s.lane, first: !begun, total: s.total}, n)
		}
		if err != nil {
			if begun {
				s.giveUp()
			}
			return err
		}

		off += n
	}

	return nil
}

// cut appends the memory of the next n bytes of the message to bufs.
func (s *sendCall) cut(bufs [][]byte, n int) [][]byte {
	for n > 0 {
		p := s.parts[s.at]
		k := min(n, len(p)-s.off)
		if k > 0 {
			bufs = append(bufs, p[s.off:s.off+k])
		}
		n -= k
		if s.off += k; s.off == len(p) {
			s.at, s.off = s.at+1, 0
		}
	}
	return bufs
}

// room waits for room for a piece of up to want bytes and returns the number of bytes.
func (s *sendCall) room(first bool, want int) (int, error) {
	for s.ctx.Err() == nil {
		n, more := s.mail.takeRoom(s.out, first, want)
		if more == nil {
			return n, nil
		}
		if err := s.wait(more, nil); err != nil {
			return 0, err
		}
	}
	return 0, s.ended()
}

// put sends a piece of n bytes. If it returns an error, no byte of the piece was sent.
func (s *sendCall) put(l frame, n int) error {
	switch {
	case s.wire == nil:
		// Frames of this rank to itself are well formed.
		return s.mail.deliver(l, n, bytes.NewReader(bytes.Join(s.cut(nil, n), nil)).Read, nil)
	case !s.borrows():
		if !s.wire.send(l.encode(s.cut(nil, n)...)) {
			return s.wait(nil, nil) // one of the two ranks closes, or is lost
		}
		return nil
	}

	err := s.write(l, n)
	if err != nil {
		s.mail.mu.Lock()
		defer s.mail.mu.Unlock()
		s.mail.giveBack(s.lane, s.out, charge(l.first, n))
	}
	return err
}

// write writes a piece of n bytes from the caller's memory, which it does not use after it has
// returned.
func (s *sendCall) write(l frame, n int) error {
	w := s.wire
	if err := s.wait(w.turn, w.ended); err != nil {
		return err
	}

	_, err := w.push(s, l.encodeHead(make([]byte, 0, prefix+maxHead), n), n)
	w.turn <- struct{}{}
	if errors.Is(err, errQuit) {
		return s.wait(nil, nil) // the pieces that were sent before stay valid
	}
	if err != nil {
		w.fail(err)
		return s.wait(nil, nil)
	}
	return nil
}

// giveUp ends an incomplete message, so that the receiver drops it.
func (s *sendCall) giveUp() {
	if s.wire != nil {
		s.wire.send((&frame{kind: frameDrop, lane: s.lane}).encode())
		return
	}
	_ = s.mail.drop(s.lane) // fails only if the message has not begun
}

// waiter lets a call of Send or Recv wait until its group or its context ends.
type waiter struct {
	op       group.Op
	me, peer int // ranks in the group
	ctx      context.Context
	over     <-chan struct{}
	loss     func(group.Op) *group.Error
	patience time.Duration // how long to wait once another rank has left
}

func (v *waiter) error(err error) error {
	return &group.Error{Op: v.op, Ranks: []int{v.peer}, Err: err}
}

// ended returns the error of a context that has ended.
func (v *waiter) ended() error { return v.error(group.ContextError(v.ctx)) }

// check returns an error if the group or the context has ended.
func (v *waiter) check() error {
	select {
	case <-v.over:
		if err := v.loss(v.op); err.Ends(v.me, v.peer) {
			return err
		}
	default:
	}
	return nil
}

// wait waits for c. If ended is closed first, the other rank is gone, which the group
// will report soon.
func (v *waiter) wait(c, ended <-chan struct{}) error {
	over := v.over
	var limit <-chan time.Time
	for {
		select {
		case <-c:
			return nil
		case <-ended:
			c, ended = nil, nil
		case <-v.ctx.Done():
			return v.ended()
		case <-over:
			if err := v.check(); err != nil {
				return err
			}
			t := time.NewTimer(v.patience)
			defer t.Stop()
			over, limit = nil, t.C
		case <-limit:
			return v.loss(v.op)
		}
	}
}
