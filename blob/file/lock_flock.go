//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn/blob"
)

// lockFile makes the file at path, if necessary, takes its lock and writes text into
// it. The system releases the lock when the process ends.
func lockFile(path string, text []byte) (*os.File, error) {
	for range lockTries {
		f, err := lockOld(path)
		if errors.Is(err, fs.ErrNotExist) {
			f, err = lockNew(path, text)
		}
		if errors.Is(err, fs.ErrExist) || err == nil && f == nil {
			continue // another process has made or removed the file meanwhile
		}
		if err != nil {
			return nil, err
		}

		if err := writeText(f, text); err != nil { // the disk may be full
			return nil, errors.Join(err, dropLock(f, path))
		}
		return f, nil
	}
	return nil, blob.ErrLocked // other processes take the lock again and again
}

// dropLock releases the lock of a file without the text, after a failed write. It removes the
// file if the file is empty.
func dropLock(f *os.File, path string) error {
	if fi, err := f.Stat(); err == nil && fi.Size() == 0 {
		return unlockFile(f, path)
	}
	return leaveFile(f)
}

// lockOld takes the lock of the file at path. It returns nil if the previous holder has
// removed the file meanwhile: other processes would lock a new file. It does not follow a
// symbolic link, because that would overwrite the target.
func lockOld(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}

	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close(), &fs.PathError{Op: "lock", Path: path, Err: errNotRegular})
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}

	here, err := isAt(f, func() (fs.FileInfo, error) { return os.Lstat(path) })
	if !here || err != nil {
		return nil, errors.Join(err, unlock(f), f.Close())
	}
	return f, nil
}

var errNotRegular = errors.New("not a regular file")

// lockNew makes the file at path, locked and complete when it appears. Otherwise a
// probe of another process could lock it first.
func lockNew(path string, text []byte) (*os.File, error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer root.Close()

	name := tempName(root)
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}

	defer root.Remove(name)

	if err = lock(f); err == nil {
		if err := writeText(f, text); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		err = root.Link(name, filepath.Base(path))
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, blob.ErrLocked): // a sweep has removed or locked it
		return nil, f.Close()
	case !errors.Is(err, fs.ErrExist) && !errors.Is(err, errors.ErrUnsupported):
		// Some file systems have no links: lockOld locks a file that is empty at
		// first.
		var empty *os.File
		if empty, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666); err == nil {
			err = empty.Close()
		}
	}

	return nil, errors.Join(err, f.Close())
}

// lock takes the lock of f. The error wraps blob.ErrLocked if another holder has
// it, and errors.ErrUnsupported if the file system has no locks.
func lock(f *os.File) error { return flock(f, unix.LOCK_EX) }

// probe tests whether lock would succeed. It does not keep the lock, and several probes
// succeed at the same time.
func probe(f *os.File) error {
	err := flock(f, unix.LOCK_SH)
	if err == nil {
		err = unlock(f)
	}
	return err
}

// unlock releases the lock of f. Closing f is not enough: a child process that was
// just forked has it open until it executes its program.
func unlock(f *os.File) error { return flock(f, unix.LOCK_UN) }

func flock(f *os.File, how int) error {
	err := control(f, func(fd int) error { return unix.Flock(fd, how|unix.LOCK_NB) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return blob.ErrLocked
	case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EINVAL):
		err = errors.ErrUnsupported
	}

	return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
}

// control runs fn on the descriptor of f, and again if a signal interrupts it.
func control(f *os.File, fn func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}

	var ferr error
	err = c.Control(func(fd uintptr) {
		for {
			if ferr = fn(int(fd)); ferr != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return ferr
}

// unlockFile removes the locked file, and only then releases its lock.
func unlockFile(f *os.File, path string) error {
	return errors.Join(os.Remove(path), unlock(f), f.Close())
}

// leaveFile releases the lock of the file and leaves the file.
func leaveFile(f *os.File) error { return errors.Join(unlock(f), f.Close()) }
