package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// ErrFrame reports a length that no frame has.
var ErrFrame = errors.New("malformed frame")

// On a stream of bytes a frame stands behind its length: four bytes, least
// significant first. No frame is empty.

// FrameWriter writes frames to a stream, in as few calls as the stream allows.
// The zero value with W set is ready; one goroutine at a time uses it.
type FrameWriter struct {
	W       io.Writer
	scratch []byte
}

// WriteFrame writes a frame, given in two parts, which it needs no more when it
// returns.
func (f *FrameWriter) WriteFrame(head, body []byte) error {
	n := len(head) + len(body)
	if n == 0 || n > MaxFrame {
		return fmt.Errorf("write frame of %d bytes: %w", n, ErrFrame)
	}
	f.scratch = binary.LittleEndian.AppendUint32(f.scratch[:0], uint32(n))
	f.scratch = append(f.scratch, head...)
	if len(body) == 0 {
		_, err := f.W.Write(f.scratch)
		return err
	}
	bufs := net.Buffers{f.scratch, body}
	_, err := bufs.WriteTo(f.W)
	return err
}

// ReadFrame reads the next frame of a stream, of at most limit bytes. It reads no
// byte more, so r is best one that reads ahead. At the end of the stream the error
// is [io.EOF], within a frame [io.ErrUnexpectedEOF].
func ReadFrame(r io.Reader, limit int) ([]byte, error) {
	n, err := ReadLength(r, limit)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	if _, err = io.ReadFull(r, b); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// ReadLength reads the length of the next frame of a stream, which follows: from
// one to limit.
func ReadLength(r io.Reader, limit int) (int, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n == 0 || uint64(n) > uint64(limit) {
		return 0, fmt.Errorf("read frame of %d bytes: %w", n, ErrFrame)
	}
	return int(n), nil
}
