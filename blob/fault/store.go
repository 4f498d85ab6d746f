package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w := &writer{s: s, name: name}
	err := s.do(ctx, Entry{Op: Create, Name: name}, func(effect) (err error) {
		w.inner, err = s.inner.Create(ctx, name, opts)
		return err
	})
	if err == nil {
		return w, nil
	}
	if w.inner != nil && !s.Crashed() {
		w.inner.Abort() // it failed late, and the caller has nothing to abort
	}
	return nil, err
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	r := &reader{s: s, name: name}
	err := s.do(ctx, Entry{Op: Open, Name: name}, func(eff effect) (err error) {
		if r.Reader, err = s.inner.Open(ctx, name); err == nil {
			r.size = eff.cut(r.Reader.Size())
		}
		return err
	})
	if err == nil {
		return r, nil
	}
	if r.Reader != nil {
		r.Close()
	}
	return nil, err
}

// Stat implements [blob.Store].
func (s *Store) Stat(ctx context.Context, name string) (blob.Info, error) {
	var info blob.Info
	err := s.do(ctx, Entry{Op: Stat, Name: name}, func(eff effect) (err error) {
		info, err = s.inner.Stat(ctx, name)
		info.Size = eff.cut(info.Size)
		return err
	})
	if err != nil {
		return blob.Info{}, err
	}
	return info, nil
}

// List implements [blob.Store]. It is one operation, at the beginning of the
// loop; a crash meanwhile ends it too.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		more := true
		err := s.do(ctx, Entry{Op: List, Name: prefix}, func(eff effect) error {
			for info, err := range s.inner.List(ctx, prefix) {
				if err == nil && !eff.crash && s.Crashed() {
					err = &blob.Error{Op: List.String(), Store: s.String(), Name: prefix, Err: ErrCrashed}
				}
				if err != nil {
					return err
				}
				if more = yield(info, nil); !more {
					return nil
				}
			}
			return nil
		})
		if err != nil && more {
			yield(blob.Info{}, err)
		}
	}
}

// Remove implements [blob.Store].
func (s *Store) Remove(ctx context.Context, name string) error {
	return s.do(ctx, Entry{Op: Remove, Name: name}, func(effect) error { return s.inner.Remove(ctx, name) })
}

// Cool implements [blob.Cooler] if the other store does.
func (s *Store) Cool(ctx context.Context, name string) error {
	return s.do(ctx, Entry{Op: Cool, Name: name}, func(effect) error {
		c, ok := blob.As[blob.Cooler](s.inner)
		if !ok {
			return &blob.Error{Op: "cool", Store: s.String(), Name: name, Err: errors.ErrUnsupported}
		}
		return c.Cool(ctx, name)
	})
}

// Temps implements [blob.Sweeper]. A store without the capability has none.
func (s *Store) Temps(ctx context.Context, dir string) ([]blob.Temp, error) {
	if sw, ok := blob.As[blob.Sweeper](s.inner); ok {
		return sw.Temps(ctx, dir)
	}
	return nil, nil
}

// SweepTemp implements [blob.Sweeper]. In a store without the capability it
// removes nothing.
func (s *Store) SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (n int, err error) {
	err = s.do(ctx, Entry{Op: Sweep}, func(effect) (err error) {
		if sw, ok := blob.As[blob.Sweeper](s.inner); ok {
			n, err = sw.SweepTemp(ctx, dir, olderThan)
		}
		return err
	})
	return n, err
}

// writer passes on what the rules let through.
type writer struct {
	s     *Store
	name  string
	inner blob.Writer

	mu    sync.Mutex
	ended bool // guarded by mu
}

func (w *writer) WriteAt(ctx context.Context, p []byte, off int64) error {
	e := Entry{Op: Write, Name: w.name, Off: off, Len: int64(len(p))}
	return w.s.do(ctx, e, func(eff effect) error {
		return w.inner.WriteAt(ctx, eff.written(p), off)
	})
}

func (w *writer) Commit(ctx context.Context) (blob.Info, error) {
	ended := w.end()
	var info blob.Info
	err := w.finish(ctx, Commit, ended, func() (err error) {
		info, err = w.inner.Commit(ctx)
		return err
	})
	if err != nil {
		return blob.Info{}, err
	}
	return info, nil
}

func (w *writer) Abort() error {
	if w.end() {
		return nil
	}
	return w.finish(context.Background(), Abort, false, w.inner.Abort)
}

// finish does op by fn. If the rules keep it from that, the writer frees
// what it took all the same, as a failed Commit does, unless it crashed.
func (w *writer) finish(ctx context.Context, op Op, ended bool, fn func() error) error {
	reached := false
	err := w.s.do(ctx, Entry{Op: op, Name: w.name}, func(effect) error {
		reached = true
		return fn()
	})
	if !reached && !ended && !w.s.Crashed() {
		w.inner.Abort()
	}
	return err
}

// end ends the writer and reports whether it was ended before.
func (w *writer) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.ended
	w.ended = true
	return was
}

// reader passes on what the rules let through.
type reader struct {
	blob.Reader
	s    *Store
	name string
	size int64 // what the rules let it see
}

func (r *reader) Size() int64 { return r.size }

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	e := Entry{Op: Read, Name: r.name, Off: off, Len: int64(len(p))}
	return r.s.do(ctx, e, func(eff effect) error {
		if r.size < r.Reader.Size() && (off > r.size || int64(len(p)) > r.size-off) {
			err := fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, len(p), off, r.size)
			return &blob.Error{Op: "read", Store: r.s.String(), Name: r.name, Err: err}
		}
		if err := r.Reader.ReadAt(ctx, p, off); err != nil {
			return err
		}
		eff.read(p)
		return nil
	})
}

// cut returns the size that is left of an object.
func (eff effect) cut(size int64) int64 {
	for _, a := range eff.edits {
		if a.edit == truncate {
			size = min(size, a.n)
		}
	}
	return size
}

// written returns what reaches the store of p, which stays as it is.
func (eff effect) written(p []byte) []byte {
	if len(eff.edits) == 0 {
		return p
	}
	p = bytes.Clone(p[:eff.cut(int64(len(p)))])
	eff.flip(p)
	return p
}

// read damages p, which was just read.
func (eff effect) read(p []byte) {
	clear(p[eff.cut(int64(len(p))):])
	eff.flip(p)
}

func (eff effect) flip(p []byte) {
	for _, a := range eff.edits {
		if a.edit == flip && len(p) > 0 {
			bit := uint64(a.n) % (uint64(len(p)) * 8)
			p[bit/8] ^= 1 << (bit % 8)
		}
	}
}
