package tcp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cairn-ckpt/cairn/group/tree"
)

// errFrame reports a length that no frame has.
var errFrame = errors.New("malformed frame")

// framed carries frames over a connection: four bytes with the length, least
// significant first, and then the frame.
type framed struct {
	net.Conn
	r       *bufio.Reader
	scratch []byte // of WriteFrame
	// silence bounds how long a frame may take to come. Zero: for ever.
	silence time.Duration
}

var _ tree.Conn = (*framed)(nil)

func newFramed(c net.Conn) *framed {
	return &framed{Conn: c, r: bufio.NewReaderSize(c, 64<<10)}
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
	if f.silence > 0 {
		if err := f.Conn.SetReadDeadline(time.Now().Add(f.silence)); err != nil {
			return 0, err
		}
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

// CloseWrite tells the other end that no more frames come.
func (f *framed) CloseWrite() error {
	if c, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}
