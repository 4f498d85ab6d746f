package tcp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group/tree"
)

// errFrame reports a length that no frame has.
var errFrame = errors.New("malformed frame")

// readAhead is how much is read beyond what is asked for. What was read so is
// copied, so it is little beside a large piece, and much beside a small one.
const readAhead = 16 << 10

// framed carries frames over a connection: four bytes with the length, least
// significant first, and then the frame.
type framed struct {
	net.Conn
	r       *bufio.Reader
	scratch []byte // of WriteFrame
	// silence bounds how long nothing may come. Zero: for ever.
	silence time.Duration

	mu      sync.Mutex
	filling bool // fill reads; guarded by mu
	cut     bool // fill is to stop; guarded by mu
}

var _ tree.Conn = (*framed)(nil)

func newFramed(c net.Conn) *framed {
	return &framed{Conn: c, r: bufio.NewReaderSize(c, readAhead)}
}

// WriteFrame sends a frame.
func (f *framed) WriteFrame(head, body []byte) error {
	n := len(head) + len(body)
	if n == 0 || n > tree.MaxFrame {
		return fmt.Errorf("write frame of %d bytes: %w", n, errFrame)
	}
	f.scratch = binary.LittleEndian.AppendUint32(f.scratch[:0], uint32(n))
	f.scratch = append(f.scratch, head...)
	if len(body) == 0 {
		_, err := f.Conn.Write(f.scratch)
		return err
	}
	bufs := net.Buffers{f.scratch, body}
	_, err := bufs.WriteTo(f.Conn)
	return err
}

// ReadFrame returns the next frame.
func (f *framed) ReadFrame() ([]byte, error) { return f.readFrame(tree.MaxFrame) }

// readFrame returns the next frame, of at most limit bytes.
func (f *framed) readFrame(limit int) ([]byte, error) {
	n, err := f.readLength(limit)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(f.r, b)
	return b, err
}

// readLength reads how long the next frame is.
func (f *framed) readLength(limit int) (int, error) {
	if err := f.arm(); err != nil {
		return 0, err
	}
	var length [4]byte
	if _, err := io.ReadFull(f.r, length[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n == 0 || n > uint32(limit) {
		return 0, fmt.Errorf("read frame of %d bytes: %w", n, errFrame)
	}
	return int(n), nil
}

// readLetter reads a letter less its body, and how long that is.
func (f *framed) readLetter() (letter, int, error) {
	n, err := f.readLength(tree.MaxFrame)
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
	f.filling, f.cut = true, false
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
	f.filling = false
	if f.cut && errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
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

// interrupt makes fill return, where that reads.
func (f *framed) interrupt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.filling {
		f.cut = true
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
