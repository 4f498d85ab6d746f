package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cairn-ckpt/cairn/blob"
)

// slice bounds what one system call moves, so that a finished context is
// noticed in the middle of a large range.
const slice = 16 << 20

// Open implements [blob.Store]. The reader keeps its bytes when the object is
// replaced or removed.
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	if err := s.check(ctx, name); err != nil {
		return nil, s.fail("open", name, err)
	}
	f, size, err := openRegular(s.path(name))
	if err != nil {
		return nil, s.fail("open", name, err)
	}
	return &reader{s: s, name: name, f: f, size: size}, nil
}

// openRegular opens a file and returns its size. It looks before it opens: to
// open a pipe waits for somebody to write to it.
func openRegular(path string) (*os.File, int64, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !fi.Mode().IsRegular() {
		return nil, 0, fs.ErrNotExist
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	if fi, err = f.Stat(); err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, fi.Size(), nil
}

type reader struct {
	s    *Store
	name string
	f    *os.File
	size int64
}

func (r *reader) Size() int64 { return r.size }

func (r *reader) Close() error {
	if err := r.f.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return r.s.fail("close", r.name, err)
	}
	return nil
}

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > r.size || int64(len(p)) > r.size-off {
		err := fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, len(p), off, r.size)
		return r.s.fail("read", r.name, err)
	}
	if err := r.read(ctx, p, off); err != nil {
		return r.s.fail("read", r.name, err)
	}
	return nil
}

func (r *reader) read(ctx context.Context, p []byte, off int64) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(len(p), slice)
		_, err := r.f.ReadAt(p[:n], off)
		switch {
		case errors.Is(err, fs.ErrClosed):
			return blob.ErrClosed
		case err == io.EOF && n > 0: // somebody cut the file short
			return fmt.Errorf("%w at %d of %d", io.ErrUnexpectedEOF, off, r.size)
		case err != nil && err != io.EOF:
			return err
		}
		p, off = p[n:], off+int64(n)
		if len(p) == 0 {
			return nil
		}
	}
}

var _ blob.Prefetcher = (*reader)(nil)

// Prefetch tells the system that the range will be read.
func (r *reader) Prefetch(off, n int64) {
	if off >= 0 && n > 0 && off < r.size {
		readAhead(r.f, off, min(n, r.size-off))
	}
}
