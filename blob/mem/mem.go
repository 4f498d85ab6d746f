// Package mem keeps objects in memory, for tests and for objects that need not outlive
// the process. It uses no files and has no limits. It keeps the contract of blob.Store.
// A store can hold both "a" and "a/b".
package mem

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	_ blob.Store          = (*Store)(nil)
	_ blob.Versioner      = (*Store)(nil)
	_ blob.VersionRemover = (*Store)(nil)
)

// Store holds objects in memory. The zero value is an empty store, ready to
// use; a Store must not be copied.
type Store struct {
	// Name distinguishes stores in messages. Set it before the first use.
	Name string

	mu      sync.RWMutex
	objects map[string]*object // guarded by mu; the objects never change
	version uint64             // guarded by mu; of the newest object
}

// String returns "mem://" and the store's name.
func (s *Store) String() string { return "mem://" + s.Name }

// Versions implements [blob.Versioner].
func (s *Store) Versions() bool { return true }

// Create implements [blob.Store]. It allocates memory as bytes are written, even if
// CreateOptions.Size is set.
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if err := check(ctx, name); err != nil {
		return nil, s.fail("create", name, err)
	}

	acct, err := blob.NewExtents(opts)
	if err != nil {
		return nil, s.fail("create", name, err)
	}

	w := &writer{s: s, name: name, acct: acct}
	if opts != nil {
		w.ifAbsent, w.ifVersion = opts.IfAbsent, opts.IfVersion
	}
	return w, nil
}

// Open implements [blob.Store]. The reader can still read the object after it was
// replaced or removed.
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	o, err := s.find(ctx, name)
	if err != nil {
		return nil, s.fail("open", name, err)
	}
	return &reader{s: s, o: o}, nil
}

// Stat implements [blob.Store].
func (s *Store) Stat(ctx context.Context, name string) (blob.Info, error) {
	o, err := s.find(ctx, name)
	if err != nil {
		return blob.Info{}, s.fail("stat", name, err)
	}
	return o.info, nil
}

// List implements [blob.Store]. It yields the objects that exist when the loop
// begins.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if err := blob.CheckPrefix(prefix); err != nil {
			yield(blob.Info{}, s.fail("list", prefix, err))
			return
		}

		for _, info := range s.snapshot(prefix) {
			if ctx.Err() != nil {
				break
			}
			if !yield(info, nil) {
				return
			}
		}

		if ctx.Err() != nil {
			yield(blob.Info{}, s.fail("list", prefix, context.Cause(ctx)))
		}
	}
}

// Remove implements [blob.Store].
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := check(ctx, name); err != nil {
		return s.fail("remove", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, name)
	return nil
}

// RemoveVersion implements [blob.VersionRemover].
func (s *Store) RemoveVersion(ctx context.Context, name, version string) error {
	err := check(ctx, name)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()

		switch o := s.objects[name]; {
		case o == nil:
			err = blob.ErrRemoved
		case o.info.Version != version:
			err = blob.ErrChanged
		default:
			delete(s.objects, name)
			return nil
		}
	}

	return s.fail("remove", name, err)
}

// find returns the object name.
func (s *Store) find(ctx context.Context, name string) (*object, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if o := s.objects[name]; o != nil {
		return o, nil
	}
	return nil, fs.ErrNotExist
}

// put makes o visible.
func (s *Store) put(o *object, ifAbsent bool, ifVersion string) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.objects == nil {
		s.objects = make(map[string]*object)
	}

	old := s.objects[o.info.Name]
	if ifAbsent && old != nil {
		return fs.ErrExist
	}
	if ifVersion != "" && (old == nil || old.info.Version != ifVersion) {
		return blob.ErrChanged
	}

	s.version++
	o.info.Version = strconv.FormatUint(s.version, 10)
	s.objects[o.info.Name] = o
	return nil
}

// snapshot returns the objects with names that begin with prefix, in order.
func (s *Store) snapshot(prefix string) []blob.Info {
	s.mu.RLock()
	defer s.mu.RUnlock()

	var infos []blob.Info
	for o := range maps.Values(s.objects) {
		if strings.HasPrefix(o.info.Name, prefix) {
			infos = append(infos, o.info)
		}
	}

	slices.SortFunc(infos, func(a, b blob.Info) int { return strings.Compare(a.Name, b.Name) })
	return infos
}

func (s *Store) fail(op, name string, err error) error {
	return &blob.Error{Op: op, Store: s.String(), Name: name, Err: err}
}

func check(ctx context.Context, name string) error {
	if err := blob.CheckName(name); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// object is a committed object. It keeps the parts that were written, so that they are
// not copied a second time.
type object struct {
	info  blob.Info
	parts []extent // in order, without gaps
}

type extent struct {
	off  int64
	data []byte
}

// readAt fills p from off on. The range must lie in the object.
func (o *object) readAt(p []byte, off int64) {
	i, exact := slices.BinarySearchFunc(o.parts, off, func(q extent, off int64) int { return cmp.Compare(q.off, off) })
	if !exact {
		i-- // the previous part holds off
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

// Version implements [blob.VersionReader].
func (r *reader) Version() string { return r.o.info.Version }

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

// writer collects the parts of one object.
type writer struct {
	s         *Store
	name      string
	ifAbsent  bool
	ifVersion string
	acct      *blob.Extents

	mu    sync.Mutex
	parts []extent // guarded by mu
	ended bool     // guarded by mu
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

	q := extent{off, bytes.Clone(p)}
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
		err = w.s.put(o, w.ifAbsent, w.ifVersion)
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

	slices.SortFunc(parts, func(a, b extent) int { return cmp.Compare(a.off, b.off) })
	return &object{blob.Info{Name: w.name, Size: size, ModTime: time.Now()}, parts}, nil
}
