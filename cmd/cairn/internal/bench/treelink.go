package bench

import (
	"bufio"
	"encoding/binary"
	"fmt"
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

// stream is a link between the coordinator's process and that of the others.
type stream struct {
	*net.UnixConn
	tree.FrameWriter
	r *bufio.Reader
}

func newStream(c *net.UnixConn) *stream {
	return &stream{c, tree.FrameWriter{W: c}, bufio.NewReaderSize(c, 64<<10)}
}

func (s *stream) ReadFrame() ([]byte, error) { return tree.ReadFrame(s.r, tree.MaxFrame) }

// introduce says which rank is at this end, by the first frame.
func (s *stream) introduce(rank int) error {
	return s.WriteFrame(binary.LittleEndian.AppendUint32(nil, uint32(rank)), nil)
}

// whom returns which rank is at the other end, as that has said.
func (s *stream) whom() (int, error) {
	b, err := s.ReadFrame()
	if err != nil {
		return 0, err
	}
	if len(b) != 4 {
		return 0, fmt.Errorf("introduction of %d bytes: %w", len(b), tree.ErrFrame)
	}
	return int(binary.LittleEndian.Uint32(b)), nil
}
