package torchdcp

import (
	"context"
	"io"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
)

// storeError is an error of the store on the way through a transformation, which
// knows nothing of stores.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// stepBytes is how much of a transformed record is read from its file at a time.
const stepBytes = 256 << 10

// section reads a range of a file from front to back.
type section struct {
	ctx     context.Context // of the whole reading: io.Reader has none
	r       blob.Reader
	at, end int64
	buf     []byte // what was read and not yet taken
	memory  []byte // what buf lies in
	read    *atomic.Int64
}

func newSection(ctx context.Context, r blob.Reader, at, length int64, read *atomic.Int64) *section {
	return &section{ctx: ctx, r: r, at: at, end: at + length, read: read, memory: make([]byte, min(stepBytes, length))}
}

// Read implements io.Reader.
func (s *section) Read(p []byte) (int, error) {
	if len(s.buf) == 0 {
		if s.at == s.end {
			return 0, io.EOF
		}
		s.buf = s.memory[:min(int64(len(s.memory)), s.end-s.at)]
		if err := s.r.ReadAt(s.ctx, s.buf, s.at); err != nil {
			s.buf = nil
			return 0, &storeError{err}
		}
		s.at += int64(len(s.buf))
		s.read.Add(int64(len(s.buf)))
	}
	n := copy(p, s.buf)
	s.buf = s.buf[n:]
	return n, nil
}
