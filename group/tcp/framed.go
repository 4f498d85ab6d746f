package tcp

import (
	"bufio"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group/tree"
)

// errFrame reports a frame that no rank sends.
var errFrame = tree.ErrFrame

// readAhead is how much is read beyond what is asked for. What was read so is
// copied, so it is little beside a large piece, and much beside a small one.
const readAhead = 16 << 10

// framed carries frames over a connection.
type framed struct {
	net.Conn
	tree.FrameWriter
	r *bufio.Reader
	// silence bounds how long nothing may come. Zero: for ever.
	silence time.Duration

	mu      sync.Mutex
	filling bool // fill reads; guarded by mu
	cut     bool // fill is to stop; guarded by mu
}

var _ tree.Conn = (*framed)(nil)

func newFramed(c net.Conn) *framed {
	return &framed{Conn: c, FrameWriter: tree.FrameWriter{W: c}, r: bufio.NewReaderSize(c, readAhead)}
}

// ReadFrame returns the next frame.
func (f *framed) ReadFrame() ([]byte, error) { return f.readFrame(tree.MaxFrame) }

// readFrame returns the next frame, of at most limit bytes.
func (f *framed) readFrame(limit int) ([]byte, error) {
	if err := f.arm(); err != nil {
		return nil, err
	}
	return tree.ReadFrame(f.r, limit)
}

// readLetter reads a letter less its body, and how long that is.
func (f *framed) readLetter() (letter, int, error) {
	if err := f.arm(); err != nil {
		return letter{}, 0, err
	}
	n, err := tree.ReadLength(f.r, tree.MaxFrame)
	if err != nil {
		return letter{}, 0, err
	}
	b, err := f.r.Peek(min(n, maxHead))
	if err != nil {
		return letter{}, 0, err
	}
	l, err := decodeLetter(b)
	if err != nil {
		return letter{}, 0, err
	}
	head := len(b) - len(l.body)
	l.body = nil // it refers to what the next read overwrites
	_, err = f.r.Discard(head)
	return l, n - head, err
}

// arm begins a time in which something must come.
func (f *framed) arm() error {
	if f.silence == 0 {
		return nil
	}
	return f.Conn.SetReadDeadline(time.Now().Add(f.silence))
}

// fill reads into b until it is full or interrupt is called, and returns how
// much it has read. It needs silence to be set.
func (f *framed) fill(b []byte) (n int, err error) {
	f.mu.Lock()
	f.filling = true
	f.mu.Unlock()
	for n < len(b) && err == nil {
		if err = f.resume(); err == nil {
			var k int
			k, err = f.r.Read(b[n:])
			n += k
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut && errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	f.filling, f.cut = false, false
	return n, err
}

// resume arms the next read of fill, unless that is to stop.
func (f *framed) resume() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return os.ErrDeadlineExceeded
	}
	return f.arm()
}

// interrupt makes fill return, also where that is yet to be called: then at once,
// with nothing.
func (f *framed) interrupt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = true
	if f.filling {
		_ = f.Conn.SetReadDeadline(time.Unix(1, 0)) // where it is closed, that interrupts
	}
}

// CloseWrite tells the other end that no more frames come.
func (f *framed) CloseWrite() error {
	if c, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}
