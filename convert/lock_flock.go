//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package convert

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile makes the file at path, if need be, and takes its lock, which the
// system gives up when the process ends. The error wraps ErrBusy where another
// has it, and errors.ErrUnsupported where the file system has no locks.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			if errors.Is(err, errors.ErrUnsupported) {
				_ = os.Remove(path) // nobody's lock, and only in the way
			}
			return nil, errors.Join(err, f.Close())
		}
		here, err := isAt(f, path)
		if here {
			return f, nil
		}
		// Whoever had it has removed it since: what we locked is no longer what
		// others would try to lock.
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

// flock takes the lock of f or says why not.
func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrBusy
		case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EINVAL):
			err = errors.ErrUnsupported
		}
		return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
}

// isAt reports whether f is the file at path.
func isAt(f *os.File, path string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}

// unlockFile removes the locked file, and only then gives up its lock.
func unlockFile(f *os.File, path string) error {
	return errors.Join(os.Remove(path), f.Close())
}
