package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/internal/wire"
)

var errQuit = errors.New("connection was not needed any more")

// mailConn is a connection for messages. The rank that dialled it sends them;
// the other one grants room.
type mailConn struct {
	mail    *mail
	peer    int
	dialled bool
	used    time.Time     // when it was last needed to send; guarded by mail.mu
	turn    chan struct{} // holds an element while connected and no goroutine writes
	wake    chan struct{} // has an element if there may be something to send
	ended   chan struct{} // closed once err is set

	mu      sync.Mutex
	queue   [][]byte  // frames, bounded by the windows of the lanes; guarded by mu
	writer  *sendCall // whose memory is being written; guarded by mu
	stopped bool      // writing was interrupted; guarded by mu
	last    bool      // nothing will be queued any more; guarded by mu
	conn    *conn     // nil until there; guarded by mu
	err     error     // why it ended; guarded by mu
}

func newWire(m *mail, peer int, dialled bool) *mailConn {
	return &mailConn{
		mail: m, peer: peer, dialled: dialled,
		turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// run sends and receives until the connection ends.
func (w *mailConn) run(f *conn) {
	f.silence = w.mail.host.cfg.Timeout
	w.mu.Lock()
	over := w.err != nil
	w.conn = f
	w.mu.Unlock()
	if over {
		f.Close()
		return
	}
	w.turn <- struct{}{}
	w.mail.host.wg.Go(func() { w.write(f) })
	w.fail(w.read(f))
}

// send queues a frame, unless nothing more is sent by this connection.
func (w *mailConn) send(b []byte) bool {
	w.mu.Lock()
	takes := w.err == nil && !w.last
	if takes {
		w.queue = append(w.queue, b)
	}
	w.mu.Unlock()
	w.signal()
	return takes
}

func (w *mailConn) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// leave ends the connection once all that is queued has been sent, and lets the
// other end know that this was meant.
func (w *mailConn) leave() {
	w.mu.Lock()
	needed := w.conn != nil || len(w.queue) > 0 // or soon will be connected
	if needed && !w.last {
		w.sayQuit()
	}
	w.mu.Unlock()
	if !needed {
		w.fail(nil)
	}
}

// sayQuit queues the last frame. The other end closes when it reads that, which
// ends the reader here: were it closed here, the other end could run into that
// before it hears why. The lock is held.
func (w *mailConn) sayQuit() {
	w.queue = append(w.queue, (&frame{kind: frameQuit}).encode(true))
	w.last = true
	w.signal()
}

// write sends what is queued, and keep-alives. It ends a connection that this rank has
// dialled and not used for the idle timeout.
func (w *mailConn) write(f *conn) {
	cfg := &w.mail.host.cfg
	beat := time.NewTicker(cfg.Timeout / 4)
	defer beat.Stop()
	alive := (&frame{kind: frameAlive}).encode(true)
	for {
		select {
		case <-w.wake:
		case <-w.ended:
			return
		case <-beat.C:
			if !w.dialled || !w.mail.retire(w, cfg.IdleTimeout) {
				w.send(alive)
			}
		}
		select {
		case <-w.turn:
		case <-w.ended:
			return
		}
		last, err := w.push(nil)
		if last && err == nil {
			err = f.CloseWrite()
		}
		w.turn <- struct{}{}
		if err != nil {
			w.fail(err)
		}
		if last || err != nil {
			return
		}
	}
}

// push writes what is queued and then the head and body of a piece of s, unless
// that is nil. If s is stopped meanwhile the rest of the piece is copied and
// queued. The turn is taken. It reports whether nothing more will be queued.
func (w *mailConn) push(s *sendCall, piece ...[]byte) (last bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || w.last && s != nil {
		return true, errQuit
	}
	frames := w.queue
	bufs := append(net.Buffers(slices.Clone(frames)), piece...)
	w.queue, w.writer = nil, s
	last = w.last
	if s == nil || s.ctx.Err() == nil {
		f := w.conn
		w.mu.Unlock()
		_, err = bufs.WriteTo(f.Conn)
		w.mu.Lock()
	}
	w.writer = nil
	if s != nil && s.ctx.Err() != nil {
		return last, w.keep(bufs, err)
	}
	for _, b := range frames {
		recycle(b)
	}
	return last, err
}

// keep queues what is left of bufs, the last of which is memory of a call, after
// writing has ended with err. The lock is held.
func (w *mailConn) keep(bufs net.Buffers, err error) error {
	if w.stopped {
		w.stopped = false
		_ = w.conn.SetWriteDeadline(time.Time{}) // if it is closed, the next write fails
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
	}
	if n := len(bufs); n > 0 {
		bufs[n-1] = bytes.Clone(bufs[n-1])
		w.queue = append(bufs, w.queue...)
		w.signal()
	}
	return err
}

// stop interrupts the writing of a piece of s.
func (w *mailConn) stop(s *sendCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writer == s {
		w.stopped = true
		_ = w.conn.SetWriteDeadline(time.Unix(1, 0)) // if it is closed, that interrupts
	}
}

// read takes what comes until the connection ends, and returns why.
func (w *mailConn) read(f *conn) error {
	for {
		l, n, err := f.readHead()
		if err != nil {
			return err
		}
		l.lane.peer = w.peer
		if err := w.receive(l, n, f); err != nil {
			return err
		}
	}
}

// receive handles a frame, whose body of n bytes is yet to be read.
func (w *mailConn) receive(l frame, n int, f *conn) error {
	grant := l.kind == frameGrant
	switch {
	case l.kind == frameAlive:
		return nil
	case l.kind == frameQuit:
		return errQuit
	case grant != w.dialled:
		return fmt.Errorf("frame of kind %d: %w", l.kind, errFrame)
	case grant:
		return w.mail.granted(l.lane, l.n)
	case l.kind == frameDrop:
		return w.mail.drop(l.lane)
	}
	return w.mail.deliver(l, n, f.fill, w)
}

// interrupt makes the reader look again where a piece is to go.
func (w *mailConn) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		w.conn.interrupt()
	}
}

// fail ends the connection, once. Unless it has ended by intent the rank at the
// other end is taken for gone, or is suspected to be.
func (w *mailConn) fail(err error) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	if err == nil || w.last {
		err = errQuit
	}
	w.err = err
	f := w.conn
	w.queue = nil
	close(w.ended)
	w.mu.Unlock()
	if f != nil {
		defer f.Close() // when this rank has said what is wrong: the other end may blame it
	}
	m := w.mail
	m.mu.Lock()
	m.moved.Broadcast()
	delete(m.others, w)
	if m.wires[w.peer] == w {
		delete(m.wires, w.peer)
	}
	m.mu.Unlock()
	switch {
	case errors.Is(err, errFrame):
		m.host.node.Gone(w.peer, err) // the rank is there, and at fault: say how
	case errors.Is(err, os.ErrDeadlineExceeded):
		m.host.node.Gone(w.peer, fmt.Errorf("silent for %v", m.host.cfg.Timeout))
	case !errors.Is(err, errQuit):
		m.suspect(w.peer)
	}
}

// frameKind is the first byte of a frame between two ranks that exchange
// messages.
type frameKind byte

const (
	frameAlive frameKind = iota + 1 // a keep-alive
	framePiece                      // a piece of a message
	frameDrop                       // the message that has begun is given up
	frameGrant                      // the receiver has room for more bytes
	frameQuit                       // the connection was not needed any more
)

// maxHead bounds what comes before the body of a frame.
const maxHead = 48

// lane is what a message belongs to: the messages of one lane keep their order.
type lane struct {
	group [16]byte
	peer  int // in the group of all ranks; not part of a frame
	tag   int
}

// frame is a frame of messages.
type frame struct {
	kind  frameKind
	lane  lane
	total int  // framePiece: bytes of the message
	first bool // framePiece: the message begins
	n     int  // frameGrant
	body  []byte
}

// encode returns the frame behind its length, as it is sent, less the body unless
// that is to be copied.
func (l *frame) encode(whole bool) []byte {
	const prefix = 4
	room := prefix + maxHead
	if whole {
		room += len(l.body)
	}
	b := l.appendHead(append(newPart(room), 0, 0, 0, 0))
	binary.LittleEndian.PutUint32(b, uint32(len(b)-prefix+len(l.body)))
	if whole {
		b = append(b, l.body...)
	}
	return b
}

// appendHead appends all but the body.
func (l *frame) appendHead(b []byte) []byte {
	w := wire.Writer{B: append(b, byte(l.kind))}
	if l.kind == frameAlive || l.kind == frameQuit {
		return w.B
	}
	w.B = append(w.B, l.lane.group[:]...)
	w.Uvarint(uint64(l.lane.tag))
	switch l.kind {
	case framePiece:
		w.Bool(l.first)
		w.Uvarint(uint64(l.total))
	case frameGrant:
		w.Uvarint(uint64(l.n))
	}
	return w.B
}

// decodeFrame takes a frame apart. The body refers to b.
func decodeFrame(b []byte) (frame, error) {
	r := wire.NewReader(b)
	l := frame{kind: frameKind(r.Byte())}
	if l.kind == frameAlive || l.kind == frameQuit {
		return l, r.Done()
	}
	copy(l.lane.group[:], r.Raw(len(l.lane.group)))
	l.lane.tag = r.CountMax(math.MaxInt)
	switch l.kind {
	case framePiece:
		l.first = r.Bool()
		l.total = r.CountMax(math.MaxInt)
		l.body = r.Raw(r.Len())
		if len(l.body) > l.total {
			r.Fail("piece of %d bytes of %d", len(l.body), l.total)
		}
	case frameGrant:
		l.n = r.CountMax(laneWindow)
	case frameDrop:
	default:
		r.Fail("frame of kind %d", l.kind)
	}
	if err := r.Done(); err != nil {
		return frame{}, fmt.Errorf("frame: %w", err)
	}
	return l, nil
}
