package fault

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	_ blob.Store   = (*Store)(nil)
	_ blob.Wrapper = (*Store)(nil)
	_ blob.Sweeper = (*Store)(nil)

	_ blob.VersionRemover = (*Store)(nil)
)

// Store passes operations on to another store, except if a rule fires. It logs every
// operation, whether or not it succeeds. An operation of another goroutine that is
// under way during a crash may still take effect, as with a real crash.
type Store struct {
	inner blob.Store

	mu      sync.Mutex
	rules   []counter // guarded by mu
	log     Ops       // guarded by mu
	crashed bool      // guarded by mu
}

// New returns a store over s with these rules. Each rule has its own count. If several
// fire at one operation, all their actions are taken, and the error comes from the
// first rule.
func New(s blob.Store, rules ...Rule) *Store {
	f := &Store{inner: s}
	for _, r := range rules {
		f.rules = append(f.rules, counter{Rule: r})
	}
	return f
}

// String returns the location of the other store.
func (s *Store) String() string { return s.inner.String() }

// Unwrap returns the other store.
func (s *Store) Unwrap() blob.Store { return s.inner }

// Crashed reports whether a Crash has fired.
func (s *Store) Crashed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crashed
}

// Ops returns the operations so far, including the one that crashed and without
// those after it.
func (s *Store) Ops() Ops {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// do runs one operation: the faults of the rules, and fn, which does the real work.
func (s *Store) do(ctx context.Context, e Entry, fn func(Action) error) error {
	a, err := s.enter(ctx, e)
	if err == nil {
		if err := fn(a); err != nil {
			return err
		}
		err = a.late
	}
	if err != nil {
		return &blob.Error{Op: e.Op.String(), Store: s.String(), Name: e.Name, Err: err}
	}
	return nil
}

// enter logs an operation, waits if it has a delay, and returns its fault, or the error that
// it returns instead of taking effect.
func (s *Store) enter(ctx context.Context, e Entry) (Action, error) {
	a, err := s.decide(e)
	if err != nil {
		return a, err
	}

	if a.delay > 0 {
		t := time.NewTimer(a.delay)
		defer t.Stop()

		select {
		case <-t.C:
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}

		if !a.crash && s.Crashed() {
			return a, ErrCrashed // another operation crashed meanwhile
		}
	}

	return a, a.err
}

// decide logs an operation and applies the rules to it. It returns an error after a
// crash.
func (s *Store) decide(e Entry) (Action, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.crashed {
		return Action{}, ErrCrashed
	}

	s.log = append(s.log, e)
	var a Action
	for i := range s.rules {
		if s.rules[i].fires(e) {
			a.add(s.rules[i].Do)
		}
	}

	s.crashed = a.crash
	return a, nil
}

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w := &writer{s: s, name: name}
	err := s.do(ctx, Entry{Op: Create, Name: name}, func(Action) (err error) {
		w.inner, err = s.inner.Create(ctx, name, opts)
		return err
	})
	if err == nil {
		return w, nil
	}

	if w.inner != nil && !s.Crashed() {
		w.inner.Abort() // it failed late, and the caller gets no writer to abort
	}
	return nil, err
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	r := &reader{s: s, name: name}
	err := s.do(ctx, Entry{Op: Open, Name: name}, func(a Action) (err error) {
		if r.Reader, err = s.inner.Open(ctx, name); err == nil {
			r.size = a.left(r.Reader.Size())
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
func (s *Store) Stat(ctx context.Context, name string) (info blob.Info, err error) {
	err = s.do(ctx, Entry{Op: Stat, Name: name}, func(a Action) (err error) {
		info, err = s.inner.Stat(ctx, name)
		info.Size = a.left(info.Size)
		return err
	})
	return info, err
}

// List implements [blob.Store]. It is one operation, at the beginning of the
// loop. A crash during the loop ends it.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		more := true
		err := s.do(ctx, Entry{Op: List, Name: prefix}, func(a Action) error {
			for info, err := range s.inner.List(ctx, prefix) {
				if err == nil && !a.crash && s.Crashed() {
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
	return s.do(ctx, Entry{Op: Remove, Name: name}, func(Action) error { return s.inner.Remove(ctx, name) })
}

// RemoveVersion implements [blob.VersionRemover]. It is a Remove.
func (s *Store) RemoveVersion(ctx context.Context, name, version string) error {
	return s.do(ctx, Entry{Op: Remove, Name: name}, func(Action) error { return blob.RemoveVersion(ctx, s.inner, name, version) })
}

// Temps implements [blob.Sweeper]. If the other store is not a Sweeper, it returns no files.
func (s *Store) Temps(ctx context.Context, dir string) ([]blob.Temp, error) {
	if sw, ok := blob.As[blob.Sweeper](s.inner); ok {
		return sw.Temps(ctx, dir)
	}
	return nil, nil
}

// SweepTemp implements [blob.Sweeper]. If the other store is not a Sweeper, it removes no
// files.
func (s *Store) SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (n int, err error) {
	err = s.do(ctx, Entry{Op: Sweep}, func(Action) (err error) {
		if sw, ok := blob.As[blob.Sweeper](s.inner); ok {
			n, err = sw.SweepTemp(ctx, dir, olderThan)
		}
		return err
	})
	return n, err
}

type writer struct {
	s     *Store
	name  string
	inner blob.Writer

	mu    sync.Mutex
	ended bool // guarded by mu
}

func (w *writer) WriteAt(ctx context.Context, p []byte, off int64) error {
	e := Entry{Op: Write, Name: w.name, Off: off, Len: int64(len(p))}
	return w.s.do(ctx, e, func(a Action) error {
		if len(a.flips) > 0 || a.cut != nil {
			p = bytes.Clone(p[:a.left(int64(len(p)))])
			a.flip(p)
		}
		return w.inner.WriteAt(ctx, p, off)
	})
}

func (w *writer) Commit(ctx context.Context) (info blob.Info, err error) {
	err = w.finish(ctx, Commit, w.end(), func() (err error) {
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

// finish runs op by fn. If a rule prevents that, the other store's writer is aborted,
// as after a failed Commit, unless there was a crash.
func (w *writer) finish(ctx context.Context, op Op, ended bool, fn func() error) error {
	reached := false
	err := w.s.do(ctx, Entry{Op: op, Name: w.name}, func(Action) error {
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

type reader struct {
	blob.Reader
	s    *Store
	name string
	size int64 // less than the size of Reader if a rule cut the object
}

func (r *reader) Size() int64 { return r.size }

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	e := Entry{Op: Read, Name: r.name, Off: off, Len: int64(len(p))}
	return r.s.do(ctx, e, func(a Action) error {
		if r.size < r.Reader.Size() && (off > r.size || int64(len(p)) > r.size-off) {
			err := fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, len(p), off, r.size)
			return &blob.Error{Op: "read", Store: r.s.String(), Name: r.name, Err: err}
		}

		if err := r.Reader.ReadAt(ctx, p, off); err != nil {
			return err
		}

		clear(p[a.left(int64(len(p))):])
		a.flip(p)
		return nil
	})
}
