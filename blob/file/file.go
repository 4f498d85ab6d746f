// Package file keeps objects as files below a directory. It does not depend on their
// contents. It keeps the contract of blob.Store. Commit syncs the object and the
// directories above it to the disk.
//
// # Layout
//
// The object "a/b" of a store is the file a/b below its directory. While it is written, it is
// a file in the same directory, with a name that begins with blob.Reserved. The store makes
// and removes directories together with the objects in them. Files of other programs are
// objects too, unless their names are not valid names of objects.
//
// # Links
//
// Reads follow all symbolic links, so that a folder of links into a cache can be read.
// Writes and removals stay in the store's directory and replace a link, not its target.
// List yields links to files and does not follow links to directories.
package file

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	_ blob.Store        = (*Store)(nil)
	_ blob.Cooler       = (*Store)(nil)
	_ blob.Sweeper      = (*Store)(nil)
	_ blob.Locker       = (*Store)(nil)
	_ blob.FolderLister = (*Store)(nil)
	_ blob.Versioner    = (*Store)(nil)
	_ blob.Resident     = (*Store)(nil)

	_ blob.VersionRemover = (*Store)(nil)
	_ blob.FolderRemover  = (*Store)(nil)
)

// Options change how a store works. Nil and the zero value are the defaults.
type Options struct {
	// NoSync leaves out every sync: objects still appear completely, but may be lost or damaged
	// in a loss of power. It is for tests, measurements, and caches that check the bytes they
	// read.
	NoSync bool
	// NoDirect writes and reads everything through the page cache. By default, large
	// objects that are written in pieces bypass it if the system and the alignment of
	// the memory allow that (see blob.AlignedBytes), and so do large reads of bytes
	// that are not in it (see blob.ReadLarge).
	NoDirect bool
	// InMemory says that the directory is in memory: objects are Resident, and use the memory of
	// removed ones, see [Store.KeepSpares].
	InMemory bool
}

// Store keeps objects below a directory. It keeps no file open between calls, so it
// need not be closed.
type Store struct {
	shown string // the directory as it was given
	dir   string // the same, absolute
	opts  Options

	mu      sync.Mutex
	settled map[string]bool // guarded by mu; directories that survive a loss of power

	// hook is for tests: its errors prevent a step.
	hook func(step string) error
}

// Open returns the store in dir. If the directory does not exist, the store is empty,
// and the first Create makes the directory.
func Open(dir string, opts *Options) (*Store, error) {
	s := &Store{shown: filepath.Clean(dir), settled: make(map[string]bool)}
	if opts != nil {
		s.opts = *opts
	}

	if dir == "" {
		return nil, errors.New("open file store: empty path")
	}

	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open file store: %w", err)
	}

	s.dir = abs
	if fi, err := os.Stat(abs); err == nil && !fi.IsDir() {
		return nil, fmt.Errorf("open file store %s: %w", s.shown, syscall.ENOTDIR)
	}
	return s, nil
}

// OpenPath returns the store of a folder, which need not exist, or of a single file.
// The store of a single file has no other objects.
func OpenPath(path string) (blob.Store, error) {
	fi, err := os.Stat(path)
	single := err == nil && fi.Mode().IsRegular()
	dir := path
	if single {
		dir = filepath.Dir(path)
	}

	s, err := Open(dir, nil)
	if err != nil {
		return nil, err // not a nil *Store in a blob.Store
	}
	if single {
		return blob.NewSingle(s, filepath.Base(path)), nil
	}
	return s, nil
}

// String returns the directory as it was given.
func (s *Store) String() string { return s.shown }

// Dir returns the absolute path of the directory.
func (s *Store) Dir() string { return s.dir }

// Parent implements [blob.Child]. If the folder is a link to a folder beside it, Parent returns
// the name of the other folder.
func (s *Store) Parent() (blob.Store, string, error) {
	dir, name := filepath.Split(s.dir)
	if fi, err := os.Lstat(s.dir); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(s.dir)
		above, aboveErr := filepath.EvalSymlinks(dir)
		if err == nil && aboveErr == nil && filepath.Dir(target) == above {
			name = filepath.Base(target)
		}
	}

	if name == "" {
		return nil, "", s.fail("find the folder above", "", errors.ErrUnsupported)
	}

	parent, err := Open(dir, &s.opts)
	if err != nil {
		return nil, "", err
	}
	return parent, name, nil
}

// Stat implements [blob.Store].
func (s *Store) Stat(ctx context.Context, name string) (blob.Info, error) {
	if err := s.check(ctx, name); err != nil {
		return blob.Info{}, s.fail("stat", name, err)
	}

	fi, err := os.Stat(s.path(name))
	if err == nil && !fi.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return blob.Info{}, s.fail("stat", name, err)
	}
	return info(name, fi), nil
}

// path returns the path of the object name.
func (s *Store) path(name string) string {
	return filepath.Join(s.dir, filepath.FromSlash(name))
}

// check returns an error if the name is invalid or ctx has ended.
func (s *Store) check(ctx context.Context, name string) error {
	if err := blob.CheckName(name); err != nil {
		return err
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) { // device names and the like
		return fmt.Errorf("%w: %q is special to this system", blob.ErrName, name)
	}
	return context.Cause(ctx)
}

// fail returns the error of an operation. It removes the path of the system's error,
// because blob.Error names the store and the object. A name below a file does not
// exist.
func (s *Store) fail(op, name string, err error) error {
	switch e := err.(type) {
	case *folderError:
		return e
	case *fs.PathError:
		err = e.Err
	case *os.LinkError:
		err = e.Err
	}
	if errors.Is(err, syscall.ENOTDIR) && (op == "stat" || op == "open") {
		err = fs.ErrNotExist
	}
	return &blob.Error{Op: op, Store: s.shown, Name: name, Err: err}
}

// step returns the error of a test's hook for the next step.
func (s *Store) step(name string) error {
	if s.hook == nil {
		return nil
	}
	return s.hook(name)
}

func info(name string, fi fs.FileInfo) blob.Info {
	return blob.Info{Name: name, Size: fi.Size(), ModTime: fi.ModTime(), Version: version(fi)}
}

// List implements [blob.Store]. It reads one directory at a time, and only those in
// which a name with the prefix can be. It does not follow links to directories.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		err := blob.CheckPrefix(prefix)
		dir, _ := path.Split(prefix)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil && (dir == "" || !s.linked(path.Clean(dir))) {
			err = s.walk(ctx, dir, prefix, yield)
		}
		if err == nil || err == errStop {
			return
		}

		if _, named := err.(*blob.Error); !named { // walk has named a folder
			err = s.fail("list", prefix, err)
		}
		yield(blob.Info{}, err)
	}
}

// errStop ends a walk after the caller has left the loop.
var errStop = errors.New("stop")

// walk yields the objects in and below dir with names that begin with prefix. dir is empty or
// ends with a slash.
func (s *Store) walk(ctx context.Context, dir, prefix string, yield func(blob.Info, error) bool) error {
	entries, err := os.ReadDir(s.path(dir))
	if gone(err) {
		return nil
	}
	if err != nil {
		return s.fail("list", dir, err)
	}

	for _, key := range keys(entries) {
		name := dir + key
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if strings.HasSuffix(name, "/") {
			if blob.CheckPrefix(name) == nil {
				err = s.walk(ctx, name, prefix, yield)
			}
		} else if blob.CheckName(name) == nil {
			err = s.visit(name, yield)
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// visit yields the object name, unless it does not exist any more or is not a regular
// file.
func (s *Store) visit(name string, yield func(blob.Info, error) bool) error {
	fi, err := os.Stat(s.path(name))
	switch {
	case gone(err) || err == nil && !fi.Mode().IsRegular():
		return nil
	case err != nil:
		return err
	case !yield(info(name, fi), nil):
		return errStop
	}

	return nil
}

// keys returns the names of entries, with a slash after names of directories, in the
// order of the objects in and below them: "a-b", "a/b", "a0".
func keys(entries []fs.DirEntry) []string {
	ks := make([]string, len(entries))
	for i, e := range entries {
		ks[i] = e.Name()
		if e.IsDir() {
			ks[i] += "/"
		}
	}
	slices.Sort(ks)
	return slices.Compact(ks)
}

// gone reports whether err means that a file does not exist, or is a dangling link.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// Remove implements [blob.Store]. It does not sync. The blocks of a large object are freed
// later, see DeferReclaim.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := s.check(ctx, name); err != nil {
		return s.fail("remove", name, err)
	}

	top, err := os.OpenRoot(s.dir)
	if err == nil {
		err = s.remove(top, name)
		top.Close()
	}
	if err != nil && !gone(err) {
		return s.fail("remove", name, err)
	}
	return nil
}

func (s *Store) remove(top *os.Root, name string) error {
	fi, err := top.Lstat(name)
	if err != nil || fi.IsDir() {
		return err // a directory is not an object
	}

	if s.setAside(top, name, fi) {
		s.prune(top, path.Dir(name))
		return nil
	}

	old := keepLarge(top, name)
	if err = top.Remove(name); err == nil {
		s.prune(top, path.Dir(name))
	}
	old.release()
	return err
}

// Cool implements [blob.Cooler] on Linux.
func (s *Store) Cool(ctx context.Context, name string) error {
	if err := s.check(ctx, name); err != nil {
		return s.fail("cool", name, err)
	}

	f, _, err := openRegular(s.path(name))
	if err != nil {
		return s.fail("cool", name, err)
	}
	defer f.Close()

	if err := dropCache(f); err != nil {
		return s.fail("cool", name, err)
	}
	return nil
}

// makeDir opens the directory dir of the store, "." for the top, and makes missing
// directories. Another process may remove it again while it is empty.
func (s *Store) makeDir(dir string) (*os.Root, error) {
	if err := s.step("mkdir"); err != nil {
		return nil, err
	}

	top, err := s.makeTop()
	if err != nil || dir == "." {
		return top, err
	}
	defer top.Close()

	sub, err := top.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.mkdirs(top, dir); err == nil {
			sub, err = top.OpenRoot(dir)
		}
	}
	if err != nil && blocked(top, dir) {
		return nil, fmt.Errorf("%w: %w", blob.ErrNested, err)
	}
	return sub, err
}

// makeTop opens the store's directory, and makes it if it is missing.
func (s *Store) makeTop() (*os.Root, error) {
	top, err := os.OpenRoot(s.dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return top, explainFolder(s.dir, err)
	}
	if _, err := makeDirs(s.dir, s.syncPath); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, explainFolder(s.dir, err)
	}
	return os.OpenRoot(s.dir)
}

// mkdirs makes dir below top. It does not check existing entries: opening dir does.
func (s *Store) mkdirs(top *os.Root, dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	for d := range parents(dir) {
		err := top.Mkdir(d, 0o777)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err == nil {
			delete(s.settled, d)
		}
	}

	return nil
}

// prune removes dir and the directories above it as long as they are empty, but not
// the top.
func (s *Store) prune(top *os.Root, dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for ; dir != "."; dir = path.Dir(dir) {
		if fi, err := top.Lstat(dir); err != nil || !fi.IsDir() { // not a link, which Remove would remove
			return
		}
		if top.Remove(dir) != nil {
			return
		}
		delete(s.settled, dir)
	}
}

// settle makes sure that dir and the directories above it survive a loss of power, even
// if another process has just made them.
func (s *Store) settle(dir string) error {
	s.mu.Lock()
	known := s.settled[dir]
	s.mu.Unlock()
	if known || s.opts.NoSync {
		return nil
	}

	for d := dir; d != "."; d = path.Dir(d) {
		if err := s.syncPath(s.path(path.Dir(d))); err != nil {
			return err
		}
	}

	if err := s.syncPath(filepath.Dir(s.dir)); err != nil {
		return err
	}

	// dir has the temporary file of the caller, so no process has removed it
	// meanwhile.
	s.mu.Lock()
	defer s.mu.Unlock()

	s.settled[dir] = true
	return nil
}

// syncPath is SyncDir, unless the store does not sync.
func (s *Store) syncPath(dir string) error {
	if s.opts.NoSync {
		return nil
	}
	if err := s.step("syncdir " + dir); err != nil {
		return err
	}
	return SyncDir(dir)
}

// blocked reports whether dir or one of the names above it is not a directory.
func blocked(top *os.Root, dir string) bool {
	for d := range parents(dir) {
		if fi, err := top.Stat(d); err == nil && !fi.IsDir() {
			return true
		}
	}
	return false
}

// parents yields the directories above dir, and dir: "a", "a/b", "a/b/c".
func parents(dir string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := 0; i < len(dir); i++ {
			n := strings.IndexByte(dir[i:], '/')
			if n < 0 {
				break
			}
			i += n
			if !yield(dir[:i]) {
				return
			}
		}
		yield(dir)
	}
}

// tempName returns the name of a new temporary file in root. It begins with the
// tag of this host, so that a sweep can identify its owner.
func tempName(root *os.Root) string { return blob.Reserved + hostTag(root) + "-" + rand.Text() }

// tagOf returns the tag in the name of a temporary file.
func tagOf(name string) string {
	tag, _, ok := strings.Cut(strings.TrimPrefix(name, blob.Reserved), "-")
	if !ok {
		return ""
	}
	return tag
}

// lockTemp locks a new temporary file, which shows that its process is alive. It
// returns false if a sweep removed the file before it was locked. If the file system
// has no locks, only the age of the file protects it.
func lockTemp(root *os.Root, f *os.File, name string) (bool, error) {
	err := lock(f)
	if errors.Is(err, blob.ErrLocked) {
		return false, nil
	}
	if err != nil {
		return true, nil
	}
	return isAt(f, func() (fs.FileInfo, error) { return root.Lstat(name) })
}

// Temps implements [blob.Sweeper].
func (s *Store) Temps(ctx context.Context, dir string) ([]blob.Temp, error) {
	var out []blob.Temp
	err := s.temps(ctx, dir, func(_ *os.Root, _ *os.File, t blob.Temp) error {
		out = append(out, t)
		return nil
	})
	if err != nil {
		return nil, s.fail("temps", dir, err)
	}
	return out, nil
}

// SweepTemp implements [blob.Sweeper].
func (s *Store) SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (int, error) {
	n, before := 0, time.Now().Add(-olderThan)
	err := s.temps(ctx, dir, func(root *os.Root, f *os.File, t blob.Temp) error {
		if t.Owner == blob.OwnerAlive || t.Owner == blob.OwnerUnknown && t.ModTime.After(before) {
			return nil
		}
		if err := lock(f); errors.Is(err, blob.ErrLocked) { // a writer has locked it meanwhile
			return nil
		}
		if err := root.Remove(path.Base(t.Name)); err != nil {
			return err
		}

		n++
		return nil
	})
	if n > 0 && dir != "" {
		if top, err := os.OpenRoot(s.dir); err == nil {
			s.prune(top, dir)
			top.Close()
		}
	}

	if err != nil {
		return n, s.fail("sweep", dir, err)
	}
	return n, nil
}

// temps calls fn for each temporary file in dir that is not a lock, with the open
// file.
func (s *Store) temps(ctx context.Context, dir string, fn func(*os.Root, *os.File, blob.Temp) error) error {
	return s.reserved(ctx, dir, func(root *os.Root, fi fs.FileInfo) error {
		if strings.HasPrefix(fi.Name(), lockPrefix) {
			return nil
		}

		f, err := root.OpenFile(fi.Name(), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()

		t := blob.Temp{Name: path.Join(dir, fi.Name()), Size: fi.Size(), ModTime: fi.ModTime()}
		t.Owner = owner(probe(f), root, tagOf(fi.Name()))
		return fn(root, f, t)
	})
}

// Open implements [blob.Store]. The reader can still read the object after it was
// replaced or removed.
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	if err := s.check(ctx, name); err != nil {
		return nil, s.fail("open", name, err)
	}
	f, fi, err := s.openObject(name)
	if err != nil {
		return nil, s.fail("open", name, err)
	}
	return &reader{s: s, name: name, f: f, size: fi.Size(), version: version(fi), noDirect: s.opts.NoDirect}, nil
}

// Create implements [blob.Store]. It makes the temporary file, and reserves its blocks
// if the size is known.
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if err := s.check(ctx, name); err != nil {
		return nil, s.fail("create", name, err)
	}

	acct, err := blob.NewExtents(opts)
	if err != nil {
		return nil, s.fail("create", name, err)
	}

	w := &writer{s: s, name: name, acct: acct}
	if opts != nil {
		w.opts = *opts
	}

	if err := w.open(ctx); err != nil {
		w.tidy()
		return nil, s.fail("create", name, err)
	}
	if err := w.prepare(ctx); err != nil {
		w.discard()
		return nil, s.fail("create", name, err)
	}
	return w, nil
}
