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

// mailConn is a connection for messages. The rank that dialled it sends messages; the
// other rank sends grants.
type mailConn struct {
	mail    *mail
	peer    int
	dialled bool
	used    time.Time     // when it was last needed to send; guarded by mail.mu
	turn    chan struct{} // holds an element while connected and no goroutine writes
	wake    chan struct{} // has an element if there may be something to send
	ended   chan struct{} // closed once err is set

	mu      sync.Mutex
	bufs    net.Buffers // memory for the next push, without elements; guarded by mu
	queue   [][]byte    // frames, bounded by the windows of the lanes; guarded by mu
	writer  *sendCall   // the call that is being written; guarded by mu
	stopped bool        // writing was interrupted; guarded by mu
	last    bool        // no more frames will be queued; guarded by mu
	conn    *conn       // nil until connected; guarded by mu
	err     error       // why it ended; guarded by mu
}

func newMailConn(m *mail, peer int, dialled bool) *mailConn {
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

// send queues a frame, unless this connection sends no more frames.
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

// leave ends the connection once all queued frames are sent, the last of which tells the
// other end that this is no failure.
func (w *mailConn) leave() {
	w.mu.Lock()
	needed := w.conn != nil || len(w.queue) > 0 // or soon will be connected
	if needed && !w.last {
		w.queueQuit()
	}
	w.mu.Unlock()
	if !needed {
		w.fail(nil)
	}
}

// queueQuit queues the last frame. The other end closes the connection when it reads
// that frame, which ends the reader here. If this end closed it, the other end could
// fail before it reads the frame. The lock is held.
func (w *mailConn) queueQuit() {
	w.queue = append(w.queue, (&frame{kind: frameQuit}).encode())
	w.last = true
	w.signal()
}

// write sends queued frames and keep-alives. It ends a connection that this rank has dialled
// and not used for the idle timeout.
func (w *mailConn) write(f *conn) {
	cfg := &w.mail.host.cfg
	beat := time.NewTicker(min(cfg.Timeout/4, cfg.IdleTimeout))
	defer beat.Stop()

	alive := (&frame{kind: frameAlive}).encode()
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

		last, err := w.push(nil, nil, 0)
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

// push writes the queued frames and then the head of a piece of s and its next n bytes,
// unless s is nil. If s is stopped meanwhile, the rest of the piece is copied and queued. The
// caller has taken the turn. push reports whether the queue has ended.
func (w *mailConn) push(s *sendCall, head []byte, n int) (last bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.err != nil || w.last && s != nil {
		return true, errQuit
	}

	frames := w.queue
	bufs := append(w.bufs, frames...)
	w.bufs = nil
	borrowed := 0
	if s != nil {
		bufs = append(bufs, head)
		own := len(bufs)
		bufs = s.cut(bufs, n)
		borrowed = len(bufs) - own
	}

	w.queue, w.writer = nil, s
	all := bufs
	last = w.last
	if s == nil || s.ctx.Err() == nil {
		f := w.conn
		w.mu.Unlock()
		_, err = bufs.WriteTo(f.Conn)
		w.mu.Lock()
	}

	w.writer = nil
	if s != nil && s.ctx.Err() != nil {
		err = w.keep(bufs, borrowed, err)
		w.reuse(all)
		return last, err
	}

	w.reuse(all)
	for _, b := range frames {
		recycle(b)
	}

	return last, err
}

// maxBufs bounds the length of mailConn.bufs.
const maxBufs = 1024

// reuse keeps the memory of bufs for the next push, but not the memory that the elements
// refer to. The lock is held.
func (w *mailConn) reuse(bufs net.Buffers) {
	clear(bufs)
	if cap(bufs) <= maxBufs {
		w.bufs = bufs[:0]
	}
}

// keep queues the rest of bufs, the last borrowed of which are memory of a call, after
// writing has ended with err. The lock is held.
func (w *mailConn) keep(bufs net.Buffers, borrowed int, err error) error {
	if w.stopped {
		w.stopped = false
		_ = w.conn.SetWriteDeadline(time.Time{}) // if it is closed, the next write fails
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
	}

	if n := len(bufs); n > 0 {
		own := max(0, n-borrowed)
		w.queue = slices.Concat(bufs[:own], [][]byte{bytes.Join(bufs[own:], nil)}, w.queue)
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
		_ = w.conn.SetWriteDeadline(time.Unix(1, 0)) // fails only if the connection is closed, which interrupts too
	}
}

// read handles frames until the connection ends, and returns the reason.
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

// receive handles a frame. Its body of n bytes is yet to be read.
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

// interrupt makes the reader ask again for the destination of a piece.
func (w *mailConn) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		w.conn.interrupt()
	}
}

// fail ends the connection. Only the first call has an effect. Unless the connection
// ended on purpose, the rank at the other end is reported as gone, or suspected.
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
		defer f.Close() // after this rank has reported the error: otherwise the other end may report this rank
	}

	m := w.mail
	m.mu.Lock()
	m.moved.Broadcast()
	delete(m.others, w)
	if m.dialled[w.peer] == w {
		delete(m.dialled, w.peer)
	}
	m.mu.Unlock()

	switch {
	case errors.Is(err, errFrame):
		m.host.node.Gone(w.peer, err) // the rank runs, but has sent a wrong frame: report the reason
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

// maxHead bounds the bytes before the body of a frame.
const maxHead = 48

// lane identifies the messages of one group, peer and tag, which keep their order.
type lane struct {
	group [16]byte
	peer  int // in the group of all ranks; not part of a frame
	tag   int
}

// frame is a decoded frame of a connection for messages.
type frame struct {
	kind  frameKind
	lane  lane
	total int    // framePiece: bytes of the message
	first bool   // framePiece: the message begins
	n     int    // frameGrant
	body  []byte // of a decoded framePiece
}

// encode returns the frame with its length before it and its body behind it, as it is
// sent.
func (l *frame) encode(body ...[]byte) []byte {
	n := 0
	for _, p := range body {
		n += len(p)
	}
	b := l.encodeHead(newPart(prefix+maxHead+n), n)
	for _, p := range body {
		b = append(b, p...)
	}
	return b
}

// prefix is the size of the length before a frame.
const prefix = 4

// encodeHead appends the frame to b, with its length before it, but without its body of n
// bytes.
func (l *frame) encodeHead(b []byte, n int) []byte {
	at := len(b)
	b = l.appendHead(append(b, 0, 0, 0, 0))
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-prefix+n))
	return b
}

// appendHead appends the frame without its body.
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

// decodeFrame decodes a frame. The body refers to b.
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
