package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
)

// slice bounds the bytes of one system call, so that a large read or write notices the
// end of its context.
const slice = 16 << 20

// openRegular opens a regular file and describes it. It calls Stat first, because to
// open a pipe would wait for a writer.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, nil, fs.ErrNotExist
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	if fi, err = f.Stat(); err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

type reader struct {
	s       *Store
	name    string
	f       *os.File
	size    int64
	version string

	mu       sync.Mutex
	direct   *os.File // guarded by mu; the same file past the page cache, opened by the first large read
	noDirect bool     // guarded by mu; reads past the page cache are not possible, not wanted or over
}

var (
	_ blob.DirectReader  = (*reader)(nil)
	_ blob.VersionReader = (*reader)(nil)
	_ blob.FileReader    = (*reader)(nil)
)

func (r *reader) Size() int64 { return r.size }

// Version implements [blob.VersionReader].
func (r *reader) Version() string { return r.version }

// File implements [blob.FileReader].
func (r *reader) File() *os.File { return r.f }

func (r *reader) Close() error {
	r.closeDirect()
	if err := r.f.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return r.s.fail("close", r.name, err)
	}
	return nil
}

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := r.checkRange(off, int64(len(p)))
	if err == nil {
		err = r.read(ctx, p, off)
	}
	if err != nil {
		return r.s.fail("read", r.name, err)
	}
	return nil
}

func (r *reader) checkRange(off, n int64) error {
	if off < 0 || off > r.size || n > r.size-off {
		return fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, n, off, r.size)
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
		case err == io.EOF && n > 0:
			return r.cutShort(off)
		case err != nil && err != io.EOF:
			return err
		}
		p, off = p[n:], off+int64(n)
		if len(p) == 0 {
			return nil
		}
	}
}

// cutShort reports a file that became shorter after it was opened.
func (r *reader) cutShort(off int64) error {
	return fmt.Errorf("%w at %d of %d", io.ErrUnexpectedEOF, off, r.size)
}

// Cached implements [blob.DirectReader].
func (r *reader) Cached(off, n int64) bool {
	if r.directFile() == nil {
		return true
	}
	cached, ok := cachedBytes(r.f, off, n)
	return !ok || cached >= n/2
}

// ReadDirect implements [blob.DirectReader].
func (r *reader) ReadDirect(ctx context.Context, buf []byte, off, n int64) ([]byte, error) {
	p, err := r.readDirect(ctx, buf, off, n)
	if err != nil {
		return nil, r.s.fail("read", r.name, err)
	}
	return p, nil
}

// readDirect reads the aligned blocks that hold n bytes from off. If a part cannot
// be read past the page cache, it is read through it.
func (r *reader) readDirect(ctx context.Context, buf []byte, off, n int64) ([]byte, error) {
	if err := r.checkRange(off, n); err != nil {
		return nil, err
	}
	lo := off &^ (blob.Align - 1)
	hi := (off + n + blob.Align - 1) &^ (blob.Align - 1)
	end := min(hi, r.size) - lo // of the file's bytes in the blocks
	f := r.directFile()
	for at := int64(0); f != nil && at < end; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		m, err := pread(f, buf[at:min(hi-lo, at+slice)], lo+at)
		if at += int64(m); at >= end {
			return buf[off-lo : off-lo+n], nil
		}
		switch {
		case refused(err), err == nil && m%blob.Align != 0: // not past the cache
			r.closeDirect()
			f = nil
		case errors.Is(err, fs.ErrClosed):
			return nil, blob.ErrClosed
		case err != nil:
			return nil, err
		case m == 0:
			return nil, r.cutShort(lo + at)
		}
	}
	return buf[:n], r.read(ctx, buf[:n], off)
}

// directFile returns the file opened for reads past the page cache, or nil.
func (r *reader) directFile() *os.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct == nil && !r.noDirect {
		r.direct = reopenDirect(r.f)
		r.noDirect = r.direct == nil
	}
	return r.direct
}

// closeDirect ends reads past the page cache.
func (r *reader) closeDirect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct != nil {
		r.direct.Close()
	}
	r.direct, r.noDirect = nil, true
}
