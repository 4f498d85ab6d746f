package tcp

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
)

// inLane is the receiving side of a lane. It exists while it holds a message or a call
// waits. The first call takes the first message.
type inLane struct {
	lane  lane
	msgs  []*message
	calls []*recvCall
	held  int       // bytes of the window that hold messages that no call takes
	owed  int       // bytes of the window that are free and not yet granted
	from  *mailConn // the connection of the messages; nil if this rank sends them to itself
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

// open returns the last message if it is not complete, and nil otherwise.
func (n *inLane) open() *message {
	if len(n.msgs) == 0 {
		return nil
	}
	if last := n.msgs[len(n.msgs)-1]; last.arrived < last.total {
		return last
	}
	return nil
}

// deliver receives a piece. fill reads its body of size bytes, and may return fewer
// bytes than it was asked for.
func (m *mail) deliver(l frame, size int, fill func([]byte) (int, error), from *mailConn) error {
	n, g, err := m.begin(l, size, from)
	if g == nil && err == nil {
		return skip(l, size, fill, from)
	}
	if size > maxEager && err == nil {
		runtime.Gosched() // the receiver of the last message may ask for this one
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

// begin returns the message of a piece. It returns no message if the piece is to be
// dropped.
func (m *mail) begin(l frame, size int, from *mailConn) (*inLane, *message, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isDropped(l.lane) {
		return nil, nil, nil
	}
	n := m.inLane(l.lane)
	for n.open() != nil && n.from != from && n.from != nil && !n.from.isOver() {
		// The rest of the last message still arrives over a connection that the sender
		// has retired, and the next message over another one.
		m.moved.Wait()
		n = m.inLane(l.lane)
	}
	g, cost := n.open(), charge(l.first, size)
	switch {
	case l.first != (g == nil), g != nil && n.from != from, l.total > m.limit(l.lane):
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
		m.serve(n) // a call may wait for it
	}
	return n, g, m.checkBacklog(l.lane.peer)
}

// claim returns memory for up to size of the next bytes, for use until release.
func (m *mail) claim(g *message, size int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	for g.busy || g.call != nil && g.call.leaving {
		m.moved.Wait()
	}
	g.busy = true
	return g.next(size)
}

// release records that k bytes have arrived, and serves the calls that wait.
func (m *mail) release(n *inLane, g *message, k int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g.advance(k)
	g.busy = false
	m.moved.Broadcast()
	m.serve(n)
}

// drop discards the incomplete message of a lane, which its sender has given up.
func (m *mail) drop(l lane) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isDropped(l) {
		return nil
	}
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

// serve gives the first message to the first call, the next one to the next, as far as
// the messages have arrived. It is called whenever a message stops being busy. The
// lock is held, and released while bytes are copied.
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

// place moves the bytes of a message that have arrived to its destination, if that is
// known.
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

// withdraw ends a call without a message. It returns false if the call has a message.
func (m *mail) withdraw(n *inLane, c *recvCall) bool {
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
	n.calls = slices.DeleteFunc(n.calls, func(o *recvCall) bool { return o == c })
	m.moved.Broadcast()
	m.serve(n)
	return true
}

// takeBack removes a message from the call that was to take it. The lock is held, and
// released while bytes are copied.
func (m *mail) takeBack(g *message) {
	g.busy = true
	m.mu.Unlock()
	g.unplace()
	m.mu.Lock()
	g.busy = false
	g.call = nil
}

// limit returns the largest size of a message of a lane.
func (m *mail) limit(l lane) int {
	if l.tag == valueTag {
		return tree.MaxFrame
	}
	return m.host.cfg.MaxMessage
}

// isDropped reports whether messages of a lane are dropped. The lock is held.
func (m *mail) isDropped(l lane) bool { return l.tag == valueTag && m.dropped[l.group] }

// discard drops the values of a group, including values that arrive later.
func (m *mail) discard(group [16]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropped[group] = true
	for l, n := range m.in {
		if m.isDropped(l) {
			m.grant(n)
		}
	}
}

// purge drops the messages of a lane if its values are dropped and no call uses
// them. The lock is held.
func (m *mail) purge(n *inLane) {
	if !m.isDropped(n.lane) || len(n.calls) > 0 || slices.ContainsFunc(n.msgs, func(g *message) bool { return g.busy }) {
		return
	}
	for _, g := range n.msgs {
		m.uncharge(n, g)
		g.discard()
	}
	n.msgs = nil
}

// skip reads a piece that is dropped, and grants its bytes to the sender again.
func skip(l frame, size int, fill func([]byte) (int, error), from *mailConn) error {
	buf := newPart(min(size, maxCopied))
	defer recycle(buf)
	for left := size; left > 0; {
		k, err := fill(buf[:min(left, cap(buf))])
		if err != nil {
			return err
		}
		left -= k
	}
	if from != nil {
		from.send((&frame{kind: frameGrant, lane: l.lane, n: charge(l.first, size)}).encode())
	}
	return nil
}

// grant allows the sender to send more bytes if at least half of the window is free.
// An idle lane grants all its bytes and is removed, except for a lane of values:
// the next call of the group uses it again, and a grant for each value would double
// the number of frames. The lock is held.
func (m *mail) grant(n *inLane) {
	m.purge(n)
	isUnused := len(n.msgs) == 0 && len(n.calls) == 0 && (n.lane.tag != valueTag || m.isDropped(n.lane))
	if n.owed >= laneWindow/2 || isUnused && n.owed > 0 {
		owed := n.owed
		n.owed = 0
		if n.from != nil {
			n.from.send((&frame{kind: frameGrant, lane: n.lane, n: owed}).encode())
		} else if o := m.out[n.lane]; o != nil { // from this rank itself
			m.giveBack(n.lane, o, owed)
		}
	}
	if isUnused && m.in[n.lane] == n {
		delete(m.in, n.lane)
	}
}

// recvCall is a call of Recv or RecvInto.
type recvCall struct {
	sized   bool   // RecvInto
	into    []byte // its memory
	scratch bool   // the caller recycles the message
	leaving bool   // it must end without a message; guarded by mail.mu
	got     []byte // set before done is closed
	done    chan struct{}
}

// recv returns the next message of a lane in new memory. If scratch is set, the caller
// recycles it.
func (m *mail) recv(w waiter, l lane, scratch bool) ([]byte, error) {
	c := &recvCall{scratch: scratch, done: make(chan struct{})}
	if err := m.await(w, l, c); err != nil {
		return nil, err
	}
	return c.got, nil
}

// recvInto takes the next message of a lane into b.
func (m *mail) recvInto(w waiter, l lane, b []byte) error {
	c := &recvCall{sized: true, into: b, done: make(chan struct{})}
	if err := m.await(w, l, c); err != nil {
		return err
	}
	return group.CheckLength(w.peer, len(c.got), len(b))
}

// await waits until c has a message, or the group or the context ends.
func (m *mail) await(w waiter, l lane, c *recvCall) error {
	if w.ctx.Err() != nil {
		return w.ended()
	}
	m.mu.Lock()
	n := m.inLane(l)
	n.calls = append(n.calls, c)
	m.serve(n)
	m.mu.Unlock()
	err := w.wait(c.done, nil)
	if err == nil || !m.withdraw(n, c) { // a message that has arrived is returned even if the group is over
		return nil
	}
	return err
}

// finish ends the call with a message.
func (c *recvCall) finish(got []byte) {
	c.got = got
	close(c.done)
}

func (c *recvCall) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

const (
	// maxCopied bounds the bytes that are copied at once: of a piece that is sent, and
	// of a piece that arrives before a call waits for it.
	maxCopied = 128 << 10
	// minPart is the smallest buffer that is allocated for bytes that have not arrived.
	minPart = 4 << 10
	// trust bounds the memory that is allocated for an announced message: at most
	// trust times the bytes that have arrived.
	trust = 4
)

// The buffers that are reused have pageStep bytes, or up to maxPages times as many: enough for
// a frame with maxCopied bytes, and for a value of a collective call. Each has pageHead bytes
// more for a head.
const (
	pageStep = 32 << 10
	pageHead = 64
	maxPages = 8
)

// pages[i] has buffers of i+1 times pageStep bytes.
var pages [maxPages]sync.Pool

// pageClass returns the index in pages of buffers for n bytes, or -1 if such buffers are not
// reused.
func pageClass(n int) int {
	i := (n - pageHead + pageStep - 1) / pageStep
	if n <= pageStep || i > maxPages {
		return -1
	}
	return max(i, 1) - 1
}

// newPart returns a buffer for at least n bytes. Large ones come from the pages.
func newPart(n int) []byte {
	i := pageClass(n)
	if i < 0 {
		return make([]byte, 0, n)
	}
	if b, ok := pages[i].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, (i+1)*pageStep+pageHead)
}

// recycle takes back a buffer that newPart has made and that is not needed any more.
func recycle(b []byte) {
	i := pageClass(cap(b))
	if i >= 0 && cap(b) == (i+1)*pageStep+pageHead {
		b = b[:0]
		pages[i].Put(&b)
	}
}

// message is a message of which at least one piece has arrived. While busy is set,
// parts, placed and dest belong to the goroutine that set it; the rest is guarded by
// mail.mu.
type message struct {
	total   int
	arrived int
	held    int       // bytes of the lane's window
	parts   [][]byte  // the bytes that have arrived, until they are placed
	placed  bool      // dest is set, and has all bytes that have arrived
	dest    []byte    // the destination, of total bytes
	call    *recvCall // the call that takes it
	busy    bool      // bytes are being moved
}

// next returns memory for the next bytes, at most size of them.
func (g *message) next(size int) []byte {
	if g.placed {
		return g.dest[g.arrived : g.arrived+size]
	}
	if last := g.lastPart(); last == nil || len(*last) == cap(*last) {
		want := max(min(size, maxCopied), min(minPart, g.total-g.arrived))
		if size == g.total {
			want = size // the window counts the bytes already, and they need not be copied later
		}
		g.parts = append(g.parts, newPart(want))
	}
	last := *g.lastPart()
	return last[len(last):min(cap(last), len(last)+size)]
}

func (g *message) lastPart() *[]byte {
	if len(g.parts) == 0 {
		return nil
	}
	return &g.parts[len(g.parts)-1]
}

// advance records that k bytes have arrived in the memory that next returned.
func (g *message) advance(k int) {
	g.arrived += k
	if !g.placed {
		last := g.lastPart()
		*last = (*last)[:len(*last)+k]
	}
}

// placeable reports whether place has something to do.
func (g *message) placeable() bool {
	return !g.placed && (g.fits() || g.total <= max(trust*g.arrived, maxPiece))
}

// fits reports whether the message is received into the memory of the call.
func (g *message) fits() bool { return g.call.sized && len(g.call.into) == g.total }

// place moves the bytes that have arrived to dest.
func (g *message) place() {
	g.placed = true
	switch {
	case g.fits():
		g.dest = g.call.into
	case len(g.parts) == 1 && len(g.parts[0]) == g.total && cap(g.parts[0]) <= 2*g.total:
		g.dest, g.parts = g.parts[0], nil
		return
	case g.call.scratch:
		g.dest = newPart(g.total)[:g.total]
	default:
		g.dest = make([]byte, g.total)
	}
	off := 0
	for _, p := range g.parts {
		off += copy(g.dest[off:], p)
	}
	g.discard()
}

// unplace moves the bytes that have arrived from dest back to parts. It copies them if
// dest is memory of the call.
func (g *message) unplace() {
	if !g.placed {
		return
	}
	part := g.dest[:g.arrived]
	if g.fits() {
		part = bytes.Clone(part)
	}
	g.placed, g.dest, g.parts = false, nil, [][]byte{part}
}

// discard releases the parts.
func (g *message) discard() {
	for _, p := range g.parts {
		recycle(p)
	}
	g.parts = nil
}

// backlog counts the messages that have arrived and that no call takes.
type backlog struct{ bytes, lanes int }

// charge counts the bytes of the window that a piece takes. If a call takes the message,
// the sender may send the same number of bytes again. The lock is held.
func (m *mail) charge(n *inLane, g *message, cost int) {
	if g.call != nil {
		n.owed += cost
		return
	}
	g.held += cost
	m.hold(n, cost)
}

// uncharge frees the bytes of the window that a message holds. The lock is held.
func (m *mail) uncharge(n *inLane, g *message) {
	n.owed += g.held
	m.hold(n, -g.held)
	g.held = 0
}

// hold changes the number of bytes in a lane that no call takes. The lock is held.
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

// checkBacklog returns an error if another rank has sent too many messages that no call
// takes. Messages of this rank to itself are not bounded. The lock is held.
func (m *mail) checkBacklog(peer int) error {
	b := m.waits[peer]
	if peer == m.host.rank || b.bytes <= m.most.bytes && b.lanes <= m.most.lanes {
		return nil
	}
	return fmt.Errorf("%d bytes with %d tags that no call receives, more than %d with %d: %w",
		b.bytes, b.lanes, m.most.bytes, m.most.lanes, errFrame)
}
