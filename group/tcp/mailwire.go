package tcp

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group/tree"
)

var errQuit = errors.New("connection was not needed any more")

// mailWire is a connection for messages. The rank that dialled it sends them;
// the other one grants room.
type mailWire struct {
	mail    *mail
	peer    int
	dialled bool

	mu    sync.Mutex
	queue [][]byte      // bounded by the windows of the lanes; guarded by mu
	quits bool          // it is not needed any more; guarded by mu
	last  bool          // nothing will be queued any more; guarded by mu
	conn  *framed       // nil until there; guarded by mu
	err   error         // why it ended; guarded by mu
	wake  chan struct{} // has an element where there may be something to send
	ended chan struct{} // closed once err is set
}

func newWire(m *mail, peer int, dialled bool) *mailWire {
	return &mailWire{mail: m, peer: peer, dialled: dialled, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// wire returns the connection by which this rank sends to peer. It is nil where
// that has ended. The lock is held.
func (m *mail) wire(peer int) *mailWire {
	w := m.wires[peer]
	if w != nil || m.closed {
		return w
	}
	w = newWire(m, peer, true)
	m.wires[peer] = w
	m.host.wg.Go(func() {
		f, err := m.host.dial(m.host.ctx, toMail, peer, m.host.address(peer))
		if err != nil {
			w.fail(err)
			return
		}
		w.run(f)
	})
	return w
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

// run sends and receives until the connection ends.
func (w *mailWire) run(f *framed) {
	f.silence = w.mail.host.cfg.Timeout
	w.mu.Lock()
	over := w.err != nil
	w.conn = f
	w.mu.Unlock()
	if over {
		f.Close()
		return
	}
	w.mail.host.wg.Go(func() { w.write(f) })
	w.fail(w.read(f))
}

// send queues a frame.
func (w *mailWire) send(b []byte) {
	w.mu.Lock()
	if w.err == nil {
		w.queue = append(w.queue, b)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next takes what is to be sent next, or nil. last says that nothing will come
// any more.
func (w *mailWire) next() (b []byte, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil, w.last
	}
	b = w.queue[0]
	w.queue = w.queue[1:]
	return b, false
}

// leave ends the connection once all that is queued has been sent, and lets the
// other end know that this was meant.
func (w *mailWire) leave() {
	w.mu.Lock()
	if w.conn == nil || w.quits {
		w.mu.Unlock()
		w.fail(nil)
		return
	}
	w.quits, w.last = true, true
	w.queue = append(w.queue, (&letter{kind: letterQuit}).encode())
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// write sends what is queued, and signs of life where that is nothing. A
// connection that this rank has dialled and not used for long it ends.
func (w *mailWire) write(f *framed) {
	cfg := &w.mail.host.cfg
	beat := time.NewTicker(cfg.Timeout / 4)
	defer beat.Stop()
	used := time.Now()
	alive := (&letter{kind: letterAlive}).encode()
	for {
		b, last := w.next()
		if b != nil {
			used = time.Now()
			if err := f.WriteFrame(nil, b); err != nil {
				w.fail(err)
				return
			}
			recycle(b)
			continue
		}
		if last {
			f.CloseWrite() // the other end closes, which ends the reader
			return
		}
		select {
		case <-w.wake:
			continue
		case <-w.ended:
			return
		case <-beat.C:
		}
		if w.dialled && time.Since(used) > cfg.IdleTimeout && w.mail.retire(w) {
			// The other end closes, which ends the reader: were it closed here,
			// the other end could run into that before it hears why.
			if f.WriteFrame((&letter{kind: letterQuit}).encode(), nil) != nil {
				w.fail(errQuit)
			}
			return
		}
		if err := f.WriteFrame(alive, nil); err != nil {
			w.fail(err)
			return
		}
	}
}

// read takes what comes until the connection ends, and returns why.
func (w *mailWire) read(f *framed) error {
	for {
		n, err := f.readLength(tree.MaxFrame)
		if err != nil {
			return err
		}
		head, err := f.r.Peek(min(n, maxHead))
		if err != nil {
			return err
		}
		l, err := decodeLetter(head)
		if err != nil {
			return err
		}
		l.lane.peer = w.peer
		size := len(head) - len(l.body)
		if _, err := f.r.Discard(size); err != nil {
			return err
		}
		if err := w.receive(l, n-size, f.r); err != nil {
			return err
		}
	}
}

// receive handles a letter, whose body of n bytes is yet to be read.
func (w *mailWire) receive(l letter, n int, r io.Reader) error {
	grant := l.kind == letterGrant
	switch {
	case l.kind == letterAlive:
		return nil
	case l.kind == letterQuit:
		return errQuit
	case grant != w.dialled:
		return fmt.Errorf("letter of kind %d: %w", l.kind, errFrame)
	case grant:
		return w.mail.granted(l.lane, l.n)
	case l.kind == letterDrop:
		return w.mail.drop(l.lane)
	}
	return w.mail.deliver(l, n, r, w)
}

// retire takes a connection out of use, unless something is queued or under way.
func (m *mail) retire(w *mailWire) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	busy := len(w.queue) > 0 || w.err != nil
	for l, o := range m.out {
		busy = busy || l.peer == w.peer && (o.room != laneWindow || o.users > 0)
	}
	if !busy {
		w.quits = true
		delete(m.wires, w.peer)
		m.others[w] = true
	}
	return !busy
}

// fail ends the connection, once. Unless it has ended by intent the rank at the
// other end is taken for gone.
func (w *mailWire) fail(err error) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	if err == nil || w.quits {
		err = errQuit
	}
	w.err = err
	f := w.conn
	w.queue = nil
	close(w.ended)
	w.mu.Unlock()
	if f != nil {
		f.Close()
	}
	m := w.mail
	m.mu.Lock()
	delete(m.others, w)
	if m.wires[w.peer] == w {
		delete(m.wires, w.peer)
	}
	m.mu.Unlock()
	if !errors.Is(err, errQuit) {
		m.host.node.Gone(w.peer, nil)
	}
}
