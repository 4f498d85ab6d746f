package torchdcp

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cairn-ckpt/cairn/storage"
)

// sequence gives access at any place to bytes that can only be made from the
// front on: going back begins anew. It is for one goroutine.
type sequence struct {
	open func(ctx context.Context) (io.ReadCloser, error)

	r  io.ReadCloser // nil: not open
	at int64         // where r is
}

// readAt fills p with the bytes from off on. Bytes that end too early are an
// error that wraps storage.ErrCorrupt.
func (s *sequence) readAt(ctx context.Context, p []byte, off int64) error {
	if s.r == nil || off < s.at {
		if err := s.rewind(ctx); err != nil {
			return err
		}
	}
	n, err := io.CopyN(io.Discard, s.r, off-s.at)
	s.at += n
	if err != nil {
		return s.fail(ctx, err)
	}
	m, err := io.ReadFull(s.r, p)
	s.at += int64(m)
	if err != nil {
		return s.fail(ctx, err)
	}
	return nil
}

// rewind goes to the front.
func (s *sequence) rewind(ctx context.Context) error {
	if err := s.close(); err != nil {
		return err
	}
	r, err := s.open(ctx)
	if err != nil {
		return err
	}
	s.r, s.at = r, 0
	return nil
}

// fail names the reason why reading ended: whatever a transformation does not
// like is damage, unless it was the store, or the caller, that ended it.
func (s *sequence) fail(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if _, ok := errors.AsType[*storeError](err); ok || errors.Is(err, storage.ErrCorrupt) {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: transformed bytes end after %d", storage.ErrCorrupt, s.at)
	}
	return fmt.Errorf("%w: transformed bytes after %d: %w", storage.ErrCorrupt, s.at, err)
}

func (s *sequence) close() error {
	if s.r == nil {
		return nil
	}
	r := s.r
	s.r = nil
	return r.Close()
}
