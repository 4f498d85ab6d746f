package tree

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

var (
	errBroken = fmt.Errorf("%w: connection lost", group.ErrGone)
	errClosed = errors.New("node is closed")
)

// link is this node's end of a connection, which may be yet to come. Frames
// about calls are short and go first, so that they are never behind the values
// of others; pieces of values go as the receiver has room, those of different
// groups in turn.
type link struct {
	node *Node
	peer int // in the group of all ranks

	mu      sync.Mutex
	control [][]byte      // guarded by mu
	waiting []*lane       // those with pieces, the next one first; guarded by mu
	conn    Conn          // nil until there; guarded by mu
	ending  bool          // close once all is sent; guarded by mu
	err     error         // why it broke; guarded by mu
	wake    chan struct{} // has an element where there may be something to send
	broken  chan struct{} // closed once err is set
	silence *time.Timer   // nil without a timeout
}

func newLink(n *Node, peer int) *link {
	l := &link{node: n, peer: peer, wake: make(chan struct{}, 1), broken: make(chan struct{})}
	if t := n.opts.Timeout; t > 0 {
		// A rank may have to wait for a rank that is gone before it connects. Its
		// neighbours find that out after one timeout, and the ranks of the group
		// learn which rank it is before they take the waiting one for gone.
		l.silence = time.AfterFunc(2*t, func() {
			l.mu.Lock()
			quiet := t
			if l.conn == nil {
				quiet = 2 * t
			}
			l.mu.Unlock()
			l.fail(fmt.Errorf("%w: silent for %v", group.ErrGone, quiet))
		})
	}
	return l
}

// attach gives the link its connection. It reports false where it has one, or
// has broken.
func (l *link) attach(c Conn) bool {
	l.mu.Lock()
	if l.conn != nil || l.err != nil {
		l.mu.Unlock()
		return false
	}
	l.conn = c
	l.mu.Unlock()
	l.heard()
	l.node.wg.Go(func() { l.write(c) })
	l.node.wg.Go(func() { l.read(c) })
	return true
}

// heard notes a sign of life.
func (l *link) heard() {
	if l.silence != nil {
		l.silence.Reset(l.node.opts.Timeout)
	}
}

func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// send queues a frame about a call.
func (l *link) send(b []byte) {
	l.mu.Lock()
	if l.err == nil {
		l.control = append(l.control, b)
	}
	l.mu.Unlock()
	l.poke()
}

// next takes what is to be sent next, or reports that there is nothing. last
// says that nothing will come after it.
func (l *link) next() (p piece, ok, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.control) > 0 {
		p.head, l.control[0] = l.control[0], nil // the queue must not keep values
		l.control = l.control[1:]
		return p, true, false
	}
	for i, ln := range l.waiting {
		if p, ok = ln.take(); !ok {
			continue
		}
		l.waiting = slices.Delete(l.waiting, i, i+1)
		if len(ln.pieces) > 0 {
			l.waiting = append(l.waiting, ln) // behind the others
		}
		return p, true, false
	}
	return p, false, l.ending
}

// drop takes all pieces that are queued. The lock is held.
func (l *link) drop() []piece {
	var all []piece
	for _, ln := range l.waiting {
		all = append(all, ln.pieces...)
		ln.pieces = nil
	}
	l.waiting = nil
	return all
}

// write sends what is queued, and signs of life where that is nothing.
func (l *link) write(c Conn) {
	var beat <-chan time.Time
	if t := l.node.opts.Timeout; t > 0 {
		ticker := time.NewTicker(t / 4)
		defer ticker.Stop()
		beat = ticker.C
	}
	for {
		p, ok, last := l.next()
		if ok {
			err := c.WriteFrame(p.head, p.body)
			if p.sent != nil {
				p.sent()
			}
			if err != nil {
				l.fail(errBroken)
				return
			}
			continue
		}
		if last {
			c.CloseWrite() // the other end closes, which ends the reader
			return
		}
		select {
		case <-l.wake:
		case <-beat:
			l.send([]byte{byte(kindAlive)})
		case <-l.broken:
			return
		}
	}
}

// read hands to the node what comes.
func (l *link) read(c Conn) {
	for {
		b, err := c.ReadFrame()
		if err != nil {
			l.fail(errBroken)
			return
		}
		l.heard()
		f, err := decode(b)
		if err == nil && f.kind != kindAlive {
			err = l.node.receive(l, f, len(b))
		}
		if err != nil {
			l.fail(fmt.Errorf("%w: %w", group.ErrGone, err))
			return
		}
	}
}

// fail breaks the link, once, and tells the node unless the node closed it.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	conn, pieces := l.conn, l.drop()
	l.control = nil
	close(l.broken)
	l.mu.Unlock()
	if l.silence != nil {
		l.silence.Stop()
	}
	if conn != nil {
		conn.Close()
	}
	for _, p := range pieces {
		p.sent()
	}
	if !errors.Is(err, errClosed) {
		l.node.linkLost(l, err)
	}
}

func (l *link) isBroken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// end closes the link once the frames that are queued have been sent. Values on
// their way are given up.
func (l *link) end() {
	l.mu.Lock()
	l.ending = true
	pieces := l.drop()
	unconnected := l.conn == nil
	l.mu.Unlock()
	for _, p := range pieces {
		p.sent()
	}
	if unconnected {
		l.fail(errClosed)
		return
	}
	l.poke()
}

// lane is one group's part of a link: its pieces, and the room for them in both
// directions. Groups share links but not lanes, so that no group waits for what
// another one has under way. It is guarded by the link's lock.
type lane struct {
	*link
	id   id
	rank int // of the other end in the group

	pieces []piece // the link's waiting has the lane where there are any
	credit int     // bytes of pieces that may be sent
	owed   int     // bytes passed on and not yet told
	unread int     // bytes received and not passed on
	closed bool    // the group is over
}

// piece is a frame with a piece of a value. After sent, it is no more needed.
type piece struct {
	head, body []byte
	sent       func()
}

func (p piece) len() int { return len(p.head) + len(p.body) }

func newLane(l *link, id id, rank int) *lane {
	return &lane{link: l, id: id, rank: rank, credit: window}
}

// sendPiece queues a piece. It calls p.sent once, also where the link breaks or
// the group is over.
func (ln *lane) sendPiece(p piece) {
	ln.mu.Lock()
	dropped := ln.closed || ln.err != nil || ln.ending
	if !dropped {
		if len(ln.pieces) == 0 {
			ln.waiting = append(ln.waiting, ln)
		}
		ln.pieces = append(ln.pieces, p)
	}
	ln.mu.Unlock()
	if dropped {
		p.sent()
		return
	}
	ln.poke()
}

// take takes the next piece, or reports that there is none that the other end
// has room for. The lock is held.
func (ln *lane) take() (p piece, ok bool) {
	if len(ln.pieces) == 0 || ln.pieces[0].len() > ln.credit {
		return piece{}, false
	}
	p = ln.pieces[0]
	ln.pieces[0] = piece{} // the queue must not keep the value
	ln.pieces = ln.pieces[1:]
	ln.credit -= p.len()
	return p, true
}

// came notes that a piece of n bytes has come.
func (ln *lane) came(n int) error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.unread+n > window {
		return fmt.Errorf("pieces beyond the window: %w", errProtocol)
	}
	ln.unread += n
	return nil
}

// passed notes that n bytes of pieces that came need no more room here, and tells
// the other end now and then.
func (ln *lane) passed(n int) {
	ln.mu.Lock()
	ln.unread -= n
	ln.owed += n
	tell := 0
	if ln.owed >= window/4 {
		tell, ln.owed = ln.owed, 0
	}
	closed := ln.closed
	ln.mu.Unlock()
	if tell > 0 && !closed {
		f := frame{kind: kindCredit, id: ln.id, credit: tell}
		ln.send(f.encode())
	}
}

// granted notes that the other end has room for n more bytes.
func (ln *lane) granted(n int) {
	ln.mu.Lock()
	ln.credit = min(ln.credit+n, window)
	ln.mu.Unlock()
	ln.poke()
}

// close gives up the pieces that are queued, and all later ones.
func (ln *lane) close() {
	ln.mu.Lock()
	ln.closed = true
	ln.waiting = slices.DeleteFunc(ln.waiting, func(o *lane) bool { return o == ln })
	pieces := ln.pieces
	ln.pieces = nil
	ln.mu.Unlock()
	for _, p := range pieces {
		p.sent()
	}
}

// Conn carries frames to and from one other rank, in order, each of them once,
// until it breaks. One goroutine writes and another one reads.
type Conn interface {
	// WriteFrame sends a frame, given in two parts, and returns once it needs
	// them no more.
	WriteFrame(head, body []byte) error
	// ReadFrame returns the next frame, which is the caller's.
	ReadFrame() ([]byte, error)
	// CloseWrite tells the other end that no more frames come.
	CloseWrite() error
	// Close ends both directions, and calls that wait.
	Close() error
}

// Network opens connections to other ranks.
type Network interface {
	// Dial opens a connection to rank, whose node gets the other end by
	// [Node.Accept]. It may wait until the rank is ready for it.
	Dial(ctx context.Context, rank int) (Conn, error)
}
