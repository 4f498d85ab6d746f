package bench

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group/tree"
)

// traffic counts what one rank sends and receives.
type traffic struct {
	links                    atomic.Int64
	sent, received           atomic.Int64
	sentBytes, receivedBytes atomic.Int64
}

// counted is an end of a link whose frames are counted.
type counted struct {
	tree.Conn
	t *traffic
}

// count returns c with its frames counted in t, which has one link more.
func (t *traffic) count(c tree.Conn) tree.Conn {
	t.links.Add(1)
	return counted{c, t}
}

func (c counted) WriteFrame(head, body []byte) error {
	c.t.sent.Add(1)
	c.t.sentBytes.Add(int64(len(head) + len(body)))
	return c.Conn.WriteFrame(head, body)
}

func (c counted) ReadFrame() ([]byte, error) {
	b, err := c.Conn.ReadFrame()
	if err == nil {
		c.t.received.Add(1)
		c.t.receivedBytes.Add(int64(len(b)))
	}
	return b, err
}

// stream is a link between the coordinator's process and that of the others:
// four bytes with the length of a frame, and the frame.
type stream struct {
	*net.UnixConn
	r *bufio.Reader
}

func newStream(c *net.UnixConn) *stream { return &stream{c, bufio.NewReaderSize(c, 64<<10)} }

func (s *stream) WriteFrame(head, body []byte) error {
	n := binary.LittleEndian.AppendUint32(nil, uint32(len(head)+len(body)))
	_, err := (&net.Buffers{n, head, body}).WriteTo(s.UnixConn)
	return err
}

func (s *stream) ReadFrame() ([]byte, error) {
	n, err := s.number()
	if err != nil {
		return nil, err
	}
	if n > tree.MaxFrame {
		return nil, fmt.Errorf("frame of %d bytes", n)
	}
	b := make([]byte, n)
	_, err = io.ReadFull(s.r, b)
	return b, err
}

func (s *stream) number() (uint32, error) {
	var b [4]byte
	_, err := io.ReadFull(s.r, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// introduce says which rank is at this end.
func (s *stream) introduce(rank int) error {
	_, err := s.Write(binary.LittleEndian.AppendUint32(nil, uint32(rank)))
	return err
}
