package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

// makeDir opens the directory dir of the store, "." for the top, and makes
// what is missing on the way. Another process may remove it again while it is
// empty.
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

// makeTop opens the store's directory, and makes it where it is missing.
func (s *Store) makeTop() (*os.Root, error) {
	top, err := os.OpenRoot(s.dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return top, err
	}
	if err := s.mkdirAll(s.dir); err != nil {
		return nil, err
	}
	return os.OpenRoot(s.dir)
}

// mkdirAll makes an absolute directory and those above it, durably.
func (s *Store) mkdirAll(dir string) error {
	err := os.Mkdir(dir, 0o777)
	parent := filepath.Dir(dir)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := s.mkdirAll(parent); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o777)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // whatever it is: opening it will tell
	}
	if err != nil {
		return err
	}
	return s.syncPath(parent)
}

// mkdirs makes dir below top. It does not ask what it finds there: opening it
// will tell.
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

// prune removes dir and those above it as far as they are empty, but not the
// top: there are no directories, only objects.
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

// settle makes sure that the way to the directory dir survives the loss of
// power, whoever made the directories on it, perhaps a moment ago.
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
	// dir holds the temporary file of the caller, so nobody has removed it
	// since, and what was true above is true here.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled[dir] = true
	return nil
}

// syncPath makes the entries of a directory durable. It leaves out one that we
// may not read: it is above the store and somebody else's.
func (s *Store) syncPath(dir string) error {
	if s.opts.NoSync {
		return nil
	}
	if err := s.step("syncdir " + dir); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return syncDir(f)
}

// blocked reports whether some other thing than a directory is on the way to
// dir.
func blocked(top *os.Root, dir string) bool {
	for d := range parents(dir) {
		if fi, err := top.Stat(d); err == nil && !fi.IsDir() {
			return true
		}
	}
	return false
}

// parents yields what leads to dir, and dir: "a", "a/b", "a/b/c".
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
