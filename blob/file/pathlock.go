package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
)

// PathLock is a lock of a path that this process holds.
type PathLock struct {
	path string
	file *os.File
	made []string // folders that were made for it, the innermost first
}

var _ blob.HeldLock = (*PathLock)(nil)

// LockPath makes the file at path and takes its lock, until Release or the end of
// the process. It makes missing folders above it. The error wraps blob.ErrLocked if
// another holder has the lock, in this process or in another one, and
// errors.ErrUnsupported if the file system has no locks.
func LockPath(path string) (*PathLock, error) { return lockPath(path, nil) }

// PathOwner returns the state of the process that had the lock of path last. Release
// removes the file: if the file does not exist and the file system has locks, no
// process has the lock.
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

// lockPath is LockPath with a note.
func lockPath(path string, note []byte) (*PathLock, error) {
	var l *PathLock
	var err error
	for range lockTries {
		// Another Release may remove a folder that existed before. Then os.MkdirAll
		// returns fs.ErrExist, and later calls fs.ErrNotExist.
		if l, err = lockPathOnce(path, note); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return l, err
}

const lockTries = 100

func lockPathOnce(path string, note []byte) (*PathLock, error) {
	made, err := makeDirs(filepath.Dir(path), SyncDir)
	if err != nil {
		return nil, err
	}
	var f *os.File
	b, err := encodeLock(path, note)
	if err == nil {
		f, err = lockFile(path, b)
	}
	if err != nil {
		removeEmpty(made)
		return nil, err
	}
	return &PathLock{path, f, made}, nil
}

// SetNote implements [blob.HeldLock].
func (l *PathLock) SetNote(note []byte) error {
	b, err := encodeLock(l.path, note)
	if err != nil {
		return err
	}
	return writeText(l.file, b)
}

// Release removes the file and releases its lock.
func (l *PathLock) Release() error {
	err := unlockFile(l.file, l.path)
	removeEmpty(l.made)
	return err
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

// makeDirs makes dir and the folders above it, and calls sync for the parent of each
// that was missing. It returns these, the innermost first.
func makeDirs(dir string, sync func(dir string) error) ([]string, error) {
	var made []string
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		if _, err := os.Lstat(d); err == nil {
			break
		}
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for _, d := range slices.Backward(made) {
		if err := sync(filepath.Dir(d)); err != nil {
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
