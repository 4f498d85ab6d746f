package mem

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/extent"
)

// object is what a Commit made. It stays in the parts it was written in, so
// that nothing is allocated for its size or copied a second time.
type object struct {
	info  blob.Info
	parts []part // in order, without gaps
}

type part struct {
	off  int64
	data []byte
}

// readAt fills p from off on. The range must lie in the object.
func (o *object) readAt(p []byte, off int64) {
	i, exact := slices.BinarySearchFunc(o.parts, off, func(q part, off int64) int { return cmp.Compare(q.off, off) })
	if !exact {
		i-- // the part before holds off
	}
	for len(p) > 0 {
		q := o.parts[i]
		n := copy(p, q.data[off-q.off:])
		p, off, i = p[n:], off+int64(n), i+1
	}
}

// reader reads one object.
type reader struct {
	s      *Store
	o      *object
	closed atomic.Bool
}

func (r *reader) Size() int64 { return r.o.info.Size }

func (r *reader) Close() error {
	r.closed.Store(true)
	return nil
}

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := r.check(ctx, off, len(p)); err != nil {
		return r.s.fail("read", r.o.info.Name, err)
	}
	if len(p) > 0 {
		r.o.readAt(p, off)
	}
	return nil
}

func (r *reader) check(ctx context.Context, off int64, n int) error {
	if r.closed.Load() {
		return blob.ErrClosed
	}
	if off < 0 || off > r.Size() || int64(n) > r.Size()-off {
		return fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, n, off, r.Size())
	}
	return context.Cause(ctx)
}

// writer gathers the parts of one object.
type writer struct {
	s        *Store
	name     string
	ifAbsent bool
	acct     *extent.Set

	mu    sync.Mutex
	parts []part // guarded by mu
	ended bool   // guarded by mu
}

func (w *writer) WriteAt(ctx context.Context, p []byte, off int64) error {
	if err := w.write(ctx, p, off); err != nil {
		return w.s.fail("write", w.name, err)
	}
	return nil
}

func (w *writer) write(ctx context.Context, p []byte, off int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	q := part{off, bytes.Clone(p)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return blob.ErrClosed
	}
	if err := w.acct.Begin(off, len(p)); err != nil {
		return err
	}
	w.acct.End(off, len(p), true)
	if len(p) > 0 {
		w.parts = append(w.parts, q)
	}
	return nil
}

func (w *writer) Commit(ctx context.Context) (blob.Info, error) {
	o, err := w.end(ctx)
	if err == nil {
		err = w.s.put(o, w.ifAbsent)
	}
	if err != nil {
		return blob.Info{}, w.s.fail("commit", w.name, err)
	}
	return o.info, nil
}

func (w *writer) Abort() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.parts = true, nil
	return nil
}

// end ends the writer and returns the object that was written.
func (w *writer) end(ctx context.Context) (*object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil, blob.ErrClosed
	}
	parts := w.parts
	w.ended, w.parts = true, nil
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	size, err := w.acct.Size()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.off, b.off) })
	return &object{blob.Info{Name: w.name, Size: size, ModTime: time.Now()}, parts}, nil
}
