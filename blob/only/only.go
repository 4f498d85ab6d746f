// Package only makes a store of a single object of another store: a file that is
// meant by itself, whatever lies beside it. It knows nothing of what the object
// is. The contract is that of blob.Store; every name but the object's is one
// that does not exist, and cannot be created.
package only

import (
	"context"
	"io/fs"
	"iter"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	_ blob.Store   = (*Store)(nil)
	_ blob.Wrapper = (*Store)(nil)
)

// Store is one object of another store. It need not exist yet.
type Store struct {
	inner blob.Store
	name  string
}

// New returns the object name of s as a store.
func New(s blob.Store, name string) *Store { return &Store{inner: s, name: name} }

// Name returns the name of the one object.
func (s *Store) Name() string { return s.name }

// String returns where the object is.
func (s *Store) String() string {
	return strings.TrimSuffix(s.inner.String(), "/") + "/" + s.name
}

// Unwrap returns the other store. Names are the same there.
func (s *Store) Unwrap() blob.Store { return s.inner }

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if name != s.name {
		return nil, s.fail("create", name, fs.ErrPermission)
	}
	return s.inner.Create(ctx, name, opts)
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	if name != s.name {
		return nil, s.fail("open", name, fs.ErrNotExist)
	}
	return s.inner.Open(ctx, name)
}

// Stat implements [blob.Store].
func (s *Store) Stat(ctx context.Context, name string) (blob.Info, error) {
	if name != s.name {
		return blob.Info{}, s.fail("stat", name, fs.ErrNotExist)
	}
	return s.inner.Stat(ctx, name)
}

// List implements [blob.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if err := blob.CheckPrefix(prefix); err != nil {
			yield(blob.Info{}, s.fail("list", prefix, err))
			return
		}
		if !strings.HasPrefix(s.name, prefix) {
			return
		}
		for info, err := range s.inner.List(ctx, s.name) {
			if err != nil || info.Name == s.name {
				yield(info, err)
				return
			}
			if info.Name > s.name {
				return
			}
		}
	}
}

// Remove implements [blob.Store].
func (s *Store) Remove(ctx context.Context, name string) error {
	if name != s.name {
		return nil
	}
	return s.inner.Remove(ctx, name)
}

func (s *Store) fail(op, name string, err error) error {
	if check := blob.CheckName(name); check != nil && op != "list" {
		err = check
	}
	return &blob.Error{Op: op, Store: s.String(), Name: name, Err: err}
}
