package fault

import (
	"context"
	"errors"
	"iter"
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

// Cool implements [blob.Cooler] where the other store does.
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
