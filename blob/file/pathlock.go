package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cairn-ckpt/cairn/blob"
)

// PathLock is a lock of a path that this process holds.
type PathLock struct {
	path string
	file *os.File
	made []string // folders that were made for it, the innermost first
}

// LockPath makes the file at path and takes its lock, until Unlock or the end of
// the process. Missing folders above it are made. The error wraps
// blob.ErrLocked if another holder has the lock, in this process or in another
// one, and errors.ErrUnsupported if the file system has no locks.
func LockPath(path string) (*PathLock, error) {
	return lockPath(path, func() ([]byte, error) { return encodeLock(path, nil) })
}

// PathOwner returns what became of the process that had the lock of path last. A
// process that gives the lock up removes the file: so if no file is there, no
// process has the lock, provided that the file system has locks.
func PathOwner(path string) (blob.Owner, error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return blob.OwnerUnknown, err
	}
	defer root.Close()
	var l blob.Lock
	err = readLock(root, filepath.Base(path), maxLock, &l)
	if errors.Is(err, fs.ErrNotExist) {
		return owner(nil, root, hostTag(root)), nil
	}
	return l.Owner, err
}

// lockPath is LockPath for a file with a text. The text is made once the folder
// exists.
func lockPath(path string, text func() ([]byte, error)) (*PathLock, error) {
	var l *PathLock
	var err error
	for range lockTries {
		// Another Unlock may remove a folder that was just there. os.MkdirAll then
		// returns fs.ErrExist, and what comes after it fs.ErrNotExist.
		if l, err = lockPathOnce(path, text); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return l, err
}

const lockTries = 100

func lockPathOnce(path string, text func() ([]byte, error)) (*PathLock, error) {
	made, err := makeAbove(path)
	if err != nil {
		return nil, err
	}
	var f *os.File
	b, err := text()
	if err == nil {
		f, err = lockFile(path, b)
	}
	if err != nil {
		removeEmpty(made)
		return nil, err
	}
	return &PathLock{path, f, made}, nil
}

// writeText makes b the content of f. It writes b first and truncates a longer text
// afterwards. Readers ignore the rest of a longer text, so if the process ends in
// between, they see the old text or the new one.
func writeText(f *os.File, b []byte) error {
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(b)))
}

// Unlock removes the file and releases its lock.
func (l *PathLock) Unlock() error {
	err := unlockFile(l.file, l.path)
	removeEmpty(l.made)
	return err
}

// makeAbove makes the folders above path, durably, and returns those that were
// missing, the innermost first.
func makeAbove(path string) ([]string, error) {
	var made []string
	dir := filepath.Dir(path)
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		if _, err := os.Lstat(d); err == nil {
			break
		}
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for _, d := range made {
		if err := SyncDir(filepath.Dir(d)); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// SyncDir makes changes of names in a directory durable. It does nothing if this
// process may not read the directory, which then belongs to another user.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return syncDir(d)
}

// removeEmpty removes folders, the innermost first, up to one that is not empty.
func removeEmpty(dirs []string) {
	for _, d := range dirs {
		if os.Remove(d) != nil {
			return
		}
	}
}
