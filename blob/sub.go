package blob

import (
	"context"
	"errors"
	"iter"
	"path"
	"slices"
	"strings"
	"time"
)

var (
	_ Store        = (*Sub)(nil)
	_ Wrapper      = (*Sub)(nil)
	_ FolderLister = (*Sub)(nil)
	_ Sweeper      = (*Sub)(nil)
	_ TempFinder   = (*Sub)(nil)
	_ Locker       = (*Sub)(nil)
	_ Knower       = (*Sub)(nil)
	_ Cooler       = (*Sub)(nil)
	_ Copier       = (*Sub)(nil)
	_ Summer       = (*Sub)(nil)
	_ BulkRemover  = (*Sub)(nil)

	_ VersionRemover = (*Sub)(nil)
	_ FolderRemover  = (*Sub)(nil)
)

// Sub is a folder of another store as a store: its objects are those below the folder,
// under names without it.
type Sub struct {
	inner  Store
	prefix string // ends with a slash
}

// NewSub returns the folder dir of s. If dir is empty, it returns s. The error wraps
// ErrName if dir is not a valid name.
func NewSub(s Store, dir string) (Store, error) {
	if dir == "" {
		return s, nil
	}
	if err := CheckName(dir); err != nil {
		return nil, &Error{Op: "open", Store: s.String(), Name: dir, Err: err}
	}
	return &Sub{inner: s, prefix: dir + "/"}, nil
}

// String returns the location of the folder.
func (s *Sub) String() string {
	return strings.TrimSuffix(s.inner.String(), "/") + "/" + strings.TrimSuffix(s.prefix, "/")
}

// Unwrap returns the other store.
func (s *Sub) Unwrap() Store { return s.inner }

// shown returns an error of the other store with the location and the names of s.
func (s *Sub) shown(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		op, err = e.Op, e.Err
	}
	return &Error{Op: op, Store: s.String(), Name: name, Err: err}
}

// check returns an error if name is invalid by itself: ".." must not become valid below
// the folder.
func (s *Sub) check(op, name string) error {
	if err := CheckName(name); err != nil {
		return &Error{Op: op, Store: s.String(), Name: name, Err: err}
	}
	return nil
}

// Create implements [Store].
func (s *Sub) Create(ctx context.Context, name string, opts *CreateOptions) (Writer, error) {
	if err := s.check("create", name); err != nil {
		return nil, err
	}
	w, err := s.inner.Create(ctx, s.prefix+name, opts)
	if err != nil {
		return nil, s.shown("create", name, err)
	}
	return &subWriter{Writer: w, s: s, name: name}, nil
}

// subWriter returns errors with the names of a Sub.
type subWriter struct {
	Writer
	s    *Sub
	name string
}

func (w *subWriter) WriteAt(ctx context.Context, p []byte, off int64) error {
	return w.s.shown("write", w.name, w.Writer.WriteAt(ctx, p, off))
}

func (w *subWriter) Commit(ctx context.Context) (Info, error) {
	info, err := w.Writer.Commit(ctx)
	if err != nil {
		return Info{}, w.s.shown("commit", w.name, err)
	}
	info.Name = w.name
	return info, nil
}

// Open implements [Store].
func (s *Sub) Open(ctx context.Context, name string) (Reader, error) {
	if err := s.check("open", name); err != nil {
		return nil, err
	}
	r, err := s.inner.Open(ctx, s.prefix+name)
	if err != nil {
		return nil, s.shown("open", name, err)
	}
	return r, nil
}

// OpenKnown implements [Knower].
func (s *Sub) OpenKnown(ctx context.Context, o Info) (Reader, error) {
	name := o.Name
	if err := s.check("open", name); err != nil {
		return nil, err
	}
	o.Name = s.prefix + name
	r, err := OpenKnown(ctx, s.inner, o)
	if err != nil {
		return nil, s.shown("open", name, err)
	}
	return r, nil
}

// Stat implements [Store].
func (s *Sub) Stat(ctx context.Context, name string) (Info, error) {
	if err := s.check("stat", name); err != nil {
		return Info{}, err
	}
	info, err := s.inner.Stat(ctx, s.prefix+name)
	if err != nil {
		return Info{}, s.shown("stat", name, err)
	}
	info.Name = name
	return info, nil
}

// List implements [Store].
func (s *Sub) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := CheckPrefix(prefix); err != nil {
			yield(Info{}, &Error{Op: "list", Store: s.String(), Name: prefix, Err: err})
			return
		}
		for info, err := range s.inner.List(ctx, s.prefix+prefix) {
			if err != nil {
				yield(Info{}, s.shown("list", prefix, err))
				return
			}
			info.Name = strings.TrimPrefix(info.Name, s.prefix)
			if !yield(info, nil) {
				return
			}
		}
	}
}

// Remove implements [Store].
func (s *Sub) Remove(ctx context.Context, name string) error {
	if err := s.check("remove", name); err != nil {
		return err
	}
	return s.shown("remove", name, s.inner.Remove(ctx, s.prefix+name))
}

// RemoveAll implements [BulkRemover].
func (s *Sub) RemoveAll(ctx context.Context, names []string) error {
	inner := make([]string, len(names))
	for i, name := range names {
		if err := s.check("remove", name); err != nil {
			return err
		}
		inner[i] = s.prefix + name
	}
	return RemoveAll(ctx, s.inner, inner)
}

// RemoveVersion implements [VersionRemover].
func (s *Sub) RemoveVersion(ctx context.Context, name, version string) error {
	if err := s.check("remove", name); err != nil {
		return err
	}
	return s.shown("remove", name, RemoveVersion(ctx, s.inner, s.prefix+name, version))
}

// RemoveFolder implements [FolderRemover].
func (s *Sub) RemoveFolder(ctx context.Context, dir string) error {
	r, ok := As[FolderRemover](s.inner)
	if !ok {
		return nil
	}
	return s.shown("remove", dir, r.RemoveFolder(ctx, s.dir(dir)))
}

// RemoveAll removes objects of s, with as few requests as it can. It continues after an
// error.
func RemoveAll(ctx context.Context, s Store, names []string) error {
	if b, ok := As[BulkRemover](s); ok {
		return b.RemoveAll(ctx, names)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, s.Remove(ctx, name))
	}
	return errors.Join(errs...)
}

// Folders implements [FolderLister].
func (s *Sub) Folders(ctx context.Context, dir string) ([]string, error) {
	out, err := Folders(ctx, s.inner, s.dir(dir))
	return out, s.shown("list", dir, err)
}

// dir returns the name of a directory in the other store.
func (s *Sub) dir(dir string) string { return path.Join(s.prefix, dir) }

// Temps implements [Sweeper].
func (s *Sub) Temps(ctx context.Context, dir string) ([]Temp, error) {
	w, ok := As[Sweeper](s.inner)
	if !ok {
		return nil, nil
	}
	out, err := w.Temps(ctx, s.dir(dir))
	for i := range out {
		out[i].Name = strings.TrimPrefix(out[i].Name, s.prefix)
	}
	return out, s.shown("sweep", dir, err)
}

// SweepTemp implements [Sweeper].
func (s *Sub) SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (int, error) {
	w, ok := As[Sweeper](s.inner)
	if !ok {
		return 0, nil
	}
	n, err := w.SweepTemp(ctx, s.dir(dir), olderThan)
	return n, s.shown("sweep", dir, err)
}

// TempFolders implements [TempFinder].
func (s *Sub) TempFolders(ctx context.Context, dir string) ([]string, error) {
	f, ok := As[TempFinder](s.inner)
	if !ok {
		return nil, nil
	}
	out, err := f.TempFolders(ctx, s.dir(dir))
	return out, s.shown("sweep", dir, err)
}

// TryLock implements [Locker].
func (s *Sub) TryLock(ctx context.Context, name string, note []byte) (HeldLock, error) {
	if err := s.check("lock", name); err != nil {
		return nil, err
	}
	l, ok := As[Locker](s.inner)
	if !ok {
		return nil, s.shown("lock", name, errors.ErrUnsupported)
	}
	held, err := l.TryLock(ctx, s.prefix+name, note)
	return held, s.shown("lock", name, err)
}

// Locks implements [Locker].
func (s *Sub) Locks(ctx context.Context, dir string) ([]Lock, error) {
	l, ok := As[Locker](s.inner)
	if !ok {
		return nil, nil
	}
	out, err := l.Locks(ctx, s.dir(dir))
	for i := range out {
		out[i].Name = strings.TrimPrefix(out[i].Name, s.prefix)
	}
	return out, s.shown("lock", dir, err)
}

// Cool implements [Cooler].
func (s *Sub) Cool(ctx context.Context, name string) error {
	c, ok := As[Cooler](s.inner)
	if !ok {
		return s.shown("cool", name, errors.ErrUnsupported)
	}
	return s.shown("cool", name, c.Cool(ctx, s.prefix+name))
}

// CopyFrom implements [Copier].
func (s *Sub) CopyFrom(ctx context.Context, from Store, o Info, name string) (Info, error) {
	c, ok := As[Copier](s.inner)
	if !ok {
		return Info{}, s.shown("copy", name, errors.ErrUnsupported)
	}
	if err := s.check("copy", name); err != nil {
		return Info{}, err
	}
	info, err := c.CopyFrom(ctx, from, o, s.prefix+name)
	if err != nil {
		return Info{}, s.shown("copy", name, err)
	}
	info.Name = name
	return info, nil
}

// Sum implements [Summer].
func (s *Sub) Sum(ctx context.Context, name string) (uint32, bool, error) {
	m, ok := As[Summer](s.inner)
	if !ok {
		return 0, false, nil
	}
	sum, ok, err := m.Sum(ctx, s.prefix+name)
	return sum, ok, s.shown("stat", name, err)
}

// Locate returns the store behind all wrappers of s, and the name there of the object
// name of s.
func Locate(s Store, name string) (Store, string) {
	for {
		if sub, ok := s.(*Sub); ok {
			name = sub.prefix + name
		}
		w, ok := s.(Wrapper)
		if !ok {
			return s, name
		}
		s = w.Unwrap()
	}
}

// FolderLister is a capability of stores that find folders without a list of all objects
// in them.
type FolderLister interface {
	// Folders returns the first elements of the names of objects that lie deeper than
	// directly below dir, in order and without dir. The empty dir is the root. A store
	// in a file system also returns empty folders and links to folders.
	Folders(ctx context.Context, dir string) ([]string, error)
}

// Folders returns the names of the folders directly below dir of s; see [FolderLister].
// If s has no such capability, it lists all objects below dir.
func Folders(ctx context.Context, s Store, dir string) ([]string, error) {
	if f, ok := As[FolderLister](s); ok {
		return f.Folders(ctx, dir)
	}
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	var out []string
	for info, err := range s.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		name, _, deeper := strings.Cut(strings.TrimPrefix(info.Name, prefix), "/")
		if deeper && (len(out) == 0 || out[len(out)-1] != name) {
			out = append(out, name)
		}
	}
	slices.Sort(out) // "b-c/x" comes before "b/x"
	return out, nil
}
