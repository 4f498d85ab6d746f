// Package prefix makes a store of the objects below a prefix of another store.
// It knows nothing of what the other store is. The contract is that of
// blob.Store; errors speak of the other store's names.
package prefix

import (
	"context"
	"errors"
	"iter"
	"path"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	_ blob.Store   = (*Store)(nil)
	_ blob.Wrapper = (*Store)(nil)
	_ blob.Cooler  = (*Store)(nil)
	_ blob.Sweeper = (*Store)(nil)
	_ blob.Locker  = (*Store)(nil)
)

// Store is the part of another store whose names begin with a prefix and a
// slash.
type Store struct {
	inner blob.Store
	pre   string // empty or ends with a slash
}

// New returns the objects of s below prefix, which is a name without a
// trailing slash. The empty prefix is all of s. With a prefix that is not a
// valid name every operation fails with blob.ErrName.
func New(s blob.Store, prefix string) *Store {
	if prefix != "" {
		prefix += "/"
	}
	return &Store{inner: s, pre: prefix}
}

// String returns the other store's place with the prefix.
func (s *Store) String() string {
	if s.pre == "" {
		return s.inner.String()
	}
	return strings.TrimSuffix(s.inner.String(), "/") + "/" + strings.TrimSuffix(s.pre, "/")
}

// Unwrap returns the other store.
func (s *Store) Unwrap() blob.Store { return s.inner }

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if err := s.check("create", name); err != nil {
		return nil, err
	}
	w, err := s.inner.Create(ctx, s.pre+name, opts)
	if err != nil {
		return nil, err
	}
	return writer{w, len(s.pre)}, nil
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	if err := s.check("open", name); err != nil {
		return nil, err
	}
	return s.inner.Open(ctx, s.pre+name)
}

// Stat implements [blob.Store].
func (s *Store) Stat(ctx context.Context, name string) (blob.Info, error) {
	if err := s.check("stat", name); err != nil {
		return blob.Info{}, err
	}
	info, err := s.inner.Stat(ctx, s.pre+name)
	return cut(info, len(s.pre)), err
}

// List implements [blob.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if err := blob.CheckPrefix(prefix); err != nil {
			yield(blob.Info{}, s.fail("list", prefix, err))
			return
		}
		for info, err := range s.inner.List(ctx, s.pre+prefix) {
			if !yield(cut(info, len(s.pre)), err) {
				return
			}
		}
	}
}

// Remove implements [blob.Store].
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := s.check("remove", name); err != nil {
		return err
	}
	return s.inner.Remove(ctx, s.pre+name)
}

// Cool implements [blob.Cooler] where the other store does.
func (s *Store) Cool(ctx context.Context, name string) error {
	if err := s.check("cool", name); err != nil {
		return err
	}
	c, ok := blob.As[blob.Cooler](s.inner)
	if !ok {
		return s.fail("cool", name, errors.ErrUnsupported)
	}
	return c.Cool(ctx, s.pre+name)
}

// Temps implements [blob.Sweeper] if the other store does.
func (s *Store) Temps(ctx context.Context, dir string) ([]blob.Temp, error) {
	sw, ok := blob.As[blob.Sweeper](s.inner)
	if !ok {
		return nil, nil
	}
	ts, err := sw.Temps(ctx, path.Join(s.pre, dir))
	for i := range ts {
		ts[i].Name = ts[i].Name[len(s.pre):]
	}
	return ts, err
}

// SweepTemp implements [blob.Sweeper] if the other store does.
func (s *Store) SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (int, error) {
	sw, ok := blob.As[blob.Sweeper](s.inner)
	if !ok {
		return 0, nil
	}
	return sw.SweepTemp(ctx, path.Join(s.pre, dir), olderThan)
}

// TryLock implements [blob.Locker] if the other store does.
func (s *Store) TryLock(ctx context.Context, name string, note []byte) (blob.HeldLock, error) {
	if err := s.check("lock", name); err != nil {
		return nil, err
	}
	l, ok := blob.As[blob.Locker](s.inner)
	if !ok {
		return nil, s.fail("lock", name, errors.ErrUnsupported)
	}
	return l.TryLock(ctx, s.pre+name, note)
}

// Locks implements [blob.Locker] if the other store does.
func (s *Store) Locks(ctx context.Context, dir string) ([]blob.Lock, error) {
	l, ok := blob.As[blob.Locker](s.inner)
	if !ok {
		return nil, nil
	}
	ls, err := l.Locks(ctx, path.Join(s.pre, dir))
	for i := range ls {
		ls[i].Name = ls[i].Name[len(s.pre):]
	}
	return ls, err
}

// check refuses a bad name before the prefix could make it look good.
func (s *Store) check(op, name string) error {
	if err := blob.CheckName(name); err != nil {
		return s.fail(op, name, err)
	}
	return nil
}

func (s *Store) fail(op, name string, err error) error {
	return &blob.Error{Op: op, Store: s.String(), Name: name, Err: err}
}

// writer takes the prefix off what Commit returns.
type writer struct {
	blob.Writer
	pre int
}

func (w writer) Commit(ctx context.Context) (blob.Info, error) {
	info, err := w.Writer.Commit(ctx)
	return cut(info, w.pre), err
}

func cut(info blob.Info, n int) blob.Info {
	info.Name = info.Name[min(n, len(info.Name)):]
	return info
}
