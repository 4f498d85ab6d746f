package convert

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrBusy reports a place at which another conversion is at work.
var ErrBusy = errors.New("another conversion to it is running")

// placeLock is the lock of a place while it is held.
type placeLock struct {
	file *os.File
	made []string // folders that were made for it, the innermost first
}

// Lock makes the place and its staging directory the caller's own, until Unlock
// or the end of the process, however that comes. A conversion holds it from
// before Prepare until after Publish or Discard. Holding it already is no error.
//
// The error wraps ErrBusy where somebody else holds it, in this process or in
// another, and errors.ErrUnsupported where the file system has no locks, so that
// nobody can know.
func (p *Place) Lock() error {
	if p.lock != nil {
		return nil
	}
	var l *placeLock
	var err error
	for range lockTries { // another one's Unlock may remove the folder that we have just seen
		if l, err = newLock(p.lockPath()); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if errors.Is(err, ErrBusy) {
		return fmt.Errorf("%s: %w", p.Path, ErrBusy)
	}
	if err != nil {
		return err
	}
	p.lock = l
	return nil
}

const lockTries = 100

// Unlock gives up what Lock took, and does nothing where that is not held.
func (p *Place) Unlock() error {
	l := p.lock
	if l == nil {
		return nil
	}
	p.lock = nil
	err := unlockFile(l.file, p.lockPath())
	removeEmpty(l.made)
	return err
}

// lockPath is the file that is locked. It lies beside the staging directory and
// not inside: Publish gives that directory another name or removes it, and then
// it is another one's directory that is there.
func (p *Place) lockPath() string { return p.beside(".cairn-lock") }

// locked runs fn under the lock, which it takes for that time unless it is held.
// Where there are no locks, Lock has said so to whoever asked.
func (p *Place) locked(fn func() error) (err error) {
	if p.lock == nil {
		if err := p.Lock(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		defer func() { err = errors.Join(err, p.Unlock()) }()
	}
	return fn()
}

func newLock(path string) (*placeLock, error) {
	made, err := makeAbove(path)
	if err != nil {
		return nil, err
	}
	f, err := lockFile(path)
	if err != nil {
		removeEmpty(made)
		return nil, err
	}
	return &placeLock{f, made}, nil
}

// makeAbove makes the folders above path, durably, and returns those that were
// missing, the innermost first.
func makeAbove(path string) ([]string, error) {
	var made []string
	dir := filepath.Dir(path)
	for d := dir; !exists(d) && d != filepath.Dir(d); d = filepath.Dir(d) {
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for _, d := range made {
		if err := syncDir(filepath.Dir(d)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
	}
	return made, nil
}

// removeEmpty removes folders, the innermost first, up to one that something is
// in.
func removeEmpty(dirs []string) {
	for _, d := range dirs {
		if os.Remove(d) != nil {
			return
		}
	}
}
