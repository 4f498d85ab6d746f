package torchsave

import (
	"context"
	"fmt"
)

// A file is read whole if it is small, and otherwise its ends first: the
// directory lies at one of them, the pickle at the other.
const (
	smallFile = 16 << 10
	endBytes  = 2 << 10
)

// source reads parts of a file. It keeps the ends.
type source struct {
	read       ReadFunc
	size       int64
	head, tail []byte
}

func newSource(ctx context.Context, read ReadFunc, size int64) (*source, error) {
	s := &source{read: read, size: size}
	if size < 0 {
		return nil, fmt.Errorf("%w: a size of %d", ErrBounds, size)
	}
	head, tail := size, int64(0)
	if size > smallFile {
		head, tail = endBytes, endBytes
	}
	var err error
	if s.head, err = s.fetch(ctx, 0, head); err != nil {
		return nil, err
	}
	s.tail, err = s.fetch(ctx, size-tail, tail)
	return s, err
}

// bytes returns n bytes from off on, which are not to be written to.
func (s *source) bytes(ctx context.Context, off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > s.size || n > s.size-off {
		return nil, fmt.Errorf("%w: %d bytes at %d of %d", ErrBounds, n, off, s.size)
	}
	if off+n <= int64(len(s.head)) {
		return s.head[off : off+n], nil
	}
	if from := s.size - int64(len(s.tail)); off >= from {
		return s.tail[off-from : off-from+n], nil
	}
	return s.fetch(ctx, off, n)
}

func (s *source) fetch(ctx context.Context, off, n int64) ([]byte, error) {
	p := make([]byte, n)
	if n == 0 {
		return p, nil
	}
	return p, s.read(ctx, p, off)
}
