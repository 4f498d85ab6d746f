package blob

import (
	"context"
	"io/fs"
	"iter"
	"strings"
)

var (
	_ Store          = (*Single)(nil)
	_ Wrapper        = (*Single)(nil)
	_ VersionRemover = (*Single)(nil)
	_ FolderRemover  = (*Single)(nil)
)

// Single is a store of one object of another store. The object need not exist yet.
// Objects of other names do not exist and cannot be created.
type Single struct {
	inner Store
	name  string
}

// NewSingle returns a store of the object name of s.
func NewSingle(s Store, name string) *Single { return &Single{inner: s, name: name} }

// Name returns the name of the object.
func (s *Single) Name() string { return s.name }

// String returns the location of the object.
func (s *Single) String() string {
	return strings.TrimSuffix(s.inner.String(), "/") + "/" + s.name
}

// Unwrap returns the other store. Names are the same there.
func (s *Single) Unwrap() Store { return s.inner }

// check returns an error, by default err, unless name is the name of the object.
func (s *Single) check(op, name string, err error) error {
	if name == s.name {
		return nil
	}
	if bad := CheckName(name); bad != nil {
		err = bad
	}
	return &Error{Op: op, Store: s.String(), Name: name, Err: err}
}

// Create implements [Store].
func (s *Single) Create(ctx context.Context, name string, opts *CreateOptions) (Writer, error) {
	if err := s.check("create", name, fs.ErrPermission); err != nil {
		return nil, err
	}
	return s.inner.Create(ctx, name, opts)
}

// Open implements [Store].
func (s *Single) Open(ctx context.Context, name string) (Reader, error) {
	if err := s.check("open", name, fs.ErrNotExist); err != nil {
		return nil, err
	}
	return s.inner.Open(ctx, name)
}

// Stat implements [Store].
func (s *Single) Stat(ctx context.Context, name string) (Info, error) {
	if err := s.check("stat", name, fs.ErrNotExist); err != nil {
		return Info{}, err
	}
	return s.inner.Stat(ctx, name)
}

// List implements [Store].
func (s *Single) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := CheckPrefix(prefix); err != nil {
			yield(Info{}, &Error{Op: "list", Store: s.String(), Name: prefix, Err: err})
			return
		}
		if !strings.HasPrefix(s.name, prefix) {
			return
		}

		for info, err := range s.inner.List(ctx, s.name) { // the object comes first
			if err != nil || info.Name == s.name {
				yield(info, err)
			}
			return
		}
	}
}

// Remove implements [Store].
func (s *Single) Remove(ctx context.Context, name string) error {
	if name != s.name {
		return nil
	}
	return s.inner.Remove(ctx, name)
}

// RemoveVersion implements [VersionRemover].
func (s *Single) RemoveVersion(ctx context.Context, name, version string) error {
	if err := s.check("remove", name, ErrRemoved); err != nil {
		return err
	}
	return RemoveVersion(ctx, s.inner, name, version)
}

// RemoveFolder implements [FolderRemover]. The folder of the object is not a part of the
// store, so it stays.
func (s *Single) RemoveFolder(context.Context, string) error { return nil }
