// Package file keeps objects as files below a directory. It knows nothing of
// what is in them. The contract is that of blob.Store; a committed object has
// been synced to the disk together with the directories that lead to it.
//
// # Layout
//
// The object "a/b" of a store is the file a/b below its directory; nothing
// else is kept. While it is written it is a file whose name begins with
// blob.Reserved beside its final place. Directories come and go with the
// objects in them. Files that others put there are objects too, unless no
// object could have their name.
//
// # Links
//
// Reading follows symbolic links wherever they lead, so that a folder of links
// into a cache can be read. Writing and removing never leave the store's
// directory and replace a link, not its target. List shows links to files and
// does not descend into links to directories.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	_ blob.Store   = (*Store)(nil)
	_ blob.Cooler  = (*Store)(nil)
	_ blob.Sweeper = (*Store)(nil)
	_ blob.Locker  = (*Store)(nil)
)

// Options change how a store works. Nil and the zero value are the defaults.
type Options struct {
	// NoSync leaves out every sync: objects still appear whole, but may be lost
	// or torn with the power. For tests and measurements.
	NoSync bool
	// NoDirect writes and reads everything through the page cache, and so fills
	// it. By default large objects that are written in pieces go past it if the
	// system and the alignment of the memory allow (see blob.AlignedBytes), and
	// so do large reads of bytes that are not in it (see blob.ReadLarge).
	NoDirect bool
}

// Store keeps objects below a directory. It holds no file open between calls,
// so it needs no closing.
type Store struct {
	shown string // the directory as it was given
	dir   string // the same, absolute
	opts  Options

	mu      sync.Mutex
	settled map[string]bool // guarded by mu; directories known to survive a crash

	// hook, where a test set it, may fail a step before it happens.
	hook func(step string) error
}

// Open returns the store in dir. The directory need not exist: an absent one
// is an empty store, and the first Create makes it.
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

// String returns the directory as it was given.
func (s *Store) String() string { return s.shown }

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

// path returns where the object name is.
func (s *Store) path(name string) string {
	return filepath.Join(s.dir, filepath.FromSlash(name))
}

// check refuses bad names and finished contexts.
func (s *Store) check(ctx context.Context, name string) error {
	if err := blob.CheckName(name); err != nil {
		return err
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) { // device names and the like
		return fmt.Errorf("%w: %q is special to this system", blob.ErrName, name)
	}
	return context.Cause(ctx)
}

// fail returns the error of an operation. It takes the path off the system's
// errors, as ours says more, and knows that below a file there is nothing.
func (s *Store) fail(op, name string, err error) error {
	switch e := err.(type) {
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

// step gives a test the chance to fail what comes next.
func (s *Store) step(name string) error {
	if s.hook == nil {
		return nil
	}
	return s.hook(name)
}

func info(name string, fi fs.FileInfo) blob.Info {
	return blob.Info{Name: name, Size: fi.Size(), ModTime: fi.ModTime()}
}
