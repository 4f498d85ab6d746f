package tree

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

var (
	errBroken = fmt.Errorf("%w: connection lost", group.ErrGone)
	errClosed = errors.New("node is closed")
)

// link is this node's end of a connection, which may not be connected yet. Frames about
// calls are sent over it. Large values are sent as messages over other connections, so
// that no frame waits for a value.
type link struct {
	node *Node
	peer int // in the group of all ranks

	mu      sync.Mutex
	queue   [][]byte      // guarded by mu
	conn    Conn          // nil until there; guarded by mu
	ending  bool          // close once all is sent; guarded by mu
	err     error         // why it broke; guarded by mu
	wake    chan struct{} // has an element if there may be something to send
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

// attach gives the link its connection. It reports false if it has one, or
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

// heard records that a frame has arrived.
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
		l.queue = append(l.queue, b)
	}
	l.mu.Unlock()
	l.poke()
}

// next takes the next frame from the queue, or returns nil. last reports that the
// queue is empty and stays empty.
func (l *link) next() (b []byte, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return nil, l.ending
	}
	b, l.queue[0] = l.queue[0], nil // the queue must not keep values
	l.queue = l.queue[1:]
	return b, false
}

// write sends queued frames, and keep-alives if the queue is empty.
func (l *link) write(c Conn) {
	var beat <-chan time.Time
	if t := l.node.opts.Timeout; t > 0 {
		ticker := time.NewTicker(t / 4)
		defer ticker.Stop()
		beat = ticker.C
	}

	for {
		b, last := l.next()
		if b != nil {
			if err := c.WriteFrame(b); err != nil {
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

// read hands received frames to the node.
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
	conn := l.conn
	l.queue = nil
	close(l.broken)
	l.mu.Unlock()

	if l.silence != nil {
		l.silence.Stop()
	}
	if conn != nil {
		conn.Close()
	}
	if !errors.Is(err, errClosed) {
		l.node.lose(l.peer, err)
	}
}

func (l *link) isBroken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// end closes the link once the frames that are queued have been sent.
func (l *link) end() {
	l.mu.Lock()
	l.ending = true
	unconnected := l.conn == nil
	l.mu.Unlock()
	if unconnected {
		l.fail(errClosed)
		return
	}
	l.poke()
}

// neighbour is a rank of a group that is next to this one in the tree.
type neighbour struct {
	*link
	rank int // in the group
}

// Conn carries frames to and from one other rank, in order, each of them once,
// until it breaks. One goroutine writes and another one reads.
type Conn interface {
	// WriteFrame sends a frame and returns when the caller may write to b again.
	WriteFrame(b []byte) error
	// ReadFrame returns the next frame, which is the caller's.
	ReadFrame() ([]byte, error)
	// CloseWrite tells the other end that no more frames come.
	CloseWrite() error
	// Close ends both directions, and calls that wait.
	Close() error
}

// Network connects a rank to others. Ranks are numbers in the group of all ranks.
type Network interface {
	// Dial opens a connection to rank. The node of rank gets the other end by [Node.Accept]. It
	// may wait until the rank is ready for it.
	Dial(ctx context.Context, rank int) (Conn, error)
	// Values returns the transport of the large values of a group's calls.
	Values(group [16]byte) Values
}

// Values carries the large values of the calls of one group between neighbours. See
// [group.Messenger] for the contract, with one tag, except that a call need not
// notice that a rank is gone: its context ends then.
type Values interface {
	// Send sends the parts, one behind the other, as one message.
	Send(ctx context.Context, to int, parts ...[]byte) error
	Recv(ctx context.Context, from int) ([]byte, error)
	// Release takes back the memory of a message that Recv returned and that the caller
	// does not need any more. It need not be called.
	Release(b []byte)
	// Close drops values that were not received, and later ones.
	Close()
}
