package convert

import (
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// ErrBusy reports a place at which another conversion is at work.
var ErrBusy = errors.New("another conversion to it is running")

// Lock makes the place and its staging directory the caller's own, until Unlock
// or the end of the process, however that comes. A conversion holds it from
// before Prepare until after Publish or Discard. Holding it already is no error.
//
// The error wraps ErrBusy if another conversion holds it, in this process or in
// another one, and errors.ErrUnsupported if the file system has no locks.
func (p *Place) Lock() error {
	if p.lock != nil {
		return nil
	}
	l, err := file.LockPath(p.lockPath())
	if errors.Is(err, blob.ErrLocked) {
		return fmt.Errorf("%s: %w", p.Path, ErrBusy)
	}
	p.lock = l
	return err
}

// Unlock gives up what Lock took. It does nothing if that is not held.
func (p *Place) Unlock() error {
	l := p.lock
	if l == nil {
		return nil
	}
	p.lock = nil
	return l.Unlock()
}

// lockPath is the file that is locked. It lies beside the staging directory and
// not inside: Publish renames or removes that directory.
func (p *Place) lockPath() string { return p.beside(lockEnding) }

// locked runs fn under the lock, which it takes for that time unless it is held.
// If the file system has no locks, it runs fn without: Lock reports that.
func (p *Place) locked(fn func() error) (err error) {
	if p.lock == nil {
		if err := p.Lock(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		defer func() { err = errors.Join(err, p.Unlock()) }()
	}
	return fn()
}
