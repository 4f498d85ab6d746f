package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// lockPrefix begins the names of the files that are locks.
const lockPrefix = blob.Reserved + "lock-"

// maxLock bounds the size of a lock that is read, and maxLocks the size of all locks
// of a directory. The notes of further locks are not read.
const (
	maxLock  = 8 << 20
	maxLocks = 16 << 20
)

// lockText is the content of the file of a lock.
type lockText struct {
	Tag  string `json:"tag"` // from hostTag
	Host string `json:"host"`
	PID  int    `json:"pid"`
	Note []byte `json:"note,omitempty"`
}

// TryLock implements [blob.Locker]. The lock "a/b" is a file beside the object
// of that name. It is not synced: a lock does not survive a loss of power.
func (s *Store) TryLock(ctx context.Context, name string, note []byte) (blob.HeldLock, error) {
	fail := func(err error) (blob.HeldLock, error) { return nil, s.fail("lock", name, err) }
	if err := s.check(ctx, name); err != nil {
		return fail(err)
	}

	dir := path.Dir(name)
	if s.linked(dir) {
		return fail(errors.ErrUnsupported)
	}

	l, err := lockPath(s.path(dir+"/"+lockPrefix+path.Base(name)), note)
	if err != nil {
		return fail(err)
	}
	return l, nil
}

// linked reports whether the path from the top to dir has a symbolic link, through
// which the store does not write.
func (s *Store) linked(dir string) bool {
	for d := range parents(dir) {
		if fi, err := os.Lstat(s.path(d)); err == nil && !fi.IsDir() {
			return true
		}
	}
	return false
}

// encodeLock returns the text of the lock at path.
func encodeLock(path string, note []byte) ([]byte, error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	host, _ := os.Hostname() // for messages only
	return json.Marshal(lockText{hostTag(root), host, os.Getpid(), note})
}

// Locks implements [blob.Locker].
func (s *Store) Locks(ctx context.Context, dir string) ([]blob.Lock, error) {
	var out []blob.Lock
	left := int64(maxLocks)
	err := s.reserved(ctx, dir, func(root *os.Root, fi fs.FileInfo) error {
		name, ok := strings.CutPrefix(fi.Name(), lockPrefix)
		if !ok {
			return nil
		}

		l := blob.Lock{Name: path.Join(dir, name), ModTime: fi.ModTime()}
		if err := readLock(root, fi.Name(), min(left, maxLock), &l); err != nil {
			return err
		}

		left -= min(left, fi.Size())
		out = append(out, l)
		return nil
	})
	if err != nil {
		return nil, s.fail("locks", dir, err)
	}
	return out, nil
}

// readLock fills in l from the file of the lock. It reads at most most bytes.
func readLock(root *os.Root, name string, most int64, l *blob.Lock) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()

	err = probe(f)
	var t lockText
	if json.NewDecoder(io.LimitReader(f, most)).Decode(&t) == nil {
		l.Note, l.Host, l.PID = t.Note, t.Host, t.PID
	}

	l.Owner = owner(err, root, t.Tag)
	if l.Owner == blob.OwnerUnknown && !l.ModTime.IsZero() && time.Since(l.ModTime) < blob.Lease {
		l.Owner = blob.OwnerAlive
	}
	return nil
}

// owner returns the state of the process that made a file, given the error of a probe
// and the tag of its host.
func owner(probed error, root *os.Root, tag string) blob.Owner {
	switch {
	case errors.Is(probed, blob.ErrLocked):
		return blob.OwnerAlive
	case probed == nil && tag != "" && tag == hostTag(root):
		return blob.OwnerDead
	}
	return blob.OwnerUnknown
}

// reserved calls fn for each regular file of dir with a reserved name. It ignores files that
// disappear meanwhile, and continues after other errors.
func (s *Store) reserved(ctx context.Context, dir string, fn func(root *os.Root, fi fs.FileInfo) error) error {
	if dir == "" {
		dir = "."
	} else if err := s.check(ctx, dir); err != nil {
		return err
	}
	if s.linked(dir) {
		return nil
	}

	root, err := os.OpenRoot(s.path(dir))
	if gone(err) {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	defer root.Close()

	entries, err := fs.ReadDir(root.FS(), ".")
	if gone(err) { // the folder was removed meanwhile
		err = nil
	}

	errs := []error{err}
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), blob.Reserved) {
			continue
		}

		fi, err := e.Info()
		if err == nil {
			err = fn(root, fi)
		}
		if err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

// isAt reports whether f is the file that stat finds.
func isAt(f *os.File, stat func() (fs.FileInfo, error)) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := stat()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}

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

	return l, explainFolder(filepath.Dir(path), err)
}

const lockTries = 100

func lockPathOnce(path string, note []byte) (*PathLock, error) {
	// The folders are synced after the lock is taken: a sync can take long, and other
	// processes should see the lock as soon as they see the folders.
	made, err := makeDirs(filepath.Dir(path), func(string) error { return nil })
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

	l := &PathLock{path, f, made}
	for _, d := range slices.Backward(made) {
		if err := SyncDir(filepath.Dir(d)); err != nil {
			return nil, errors.Join(err, l.Release())
		}
	}

	return l, nil
}

// SetNote implements [blob.HeldLock].
func (l *PathLock) SetNote(note []byte) error {
	b, err := encodeLock(l.path, note)
	if err != nil {
		return err
	}
	return writeText(l.file, b)
}

// Beat implements [blob.HeldLock]. Processes of this host do not need it: they see
// whether the lock is held.
func (l *PathLock) Beat(context.Context) error { return os.Chtimes(l.path, time.Time{}, time.Now()) }

// Release removes the file and releases its lock.
func (l *PathLock) Release() error {
	err := unlockFile(l.file, l.path)
	removeEmpty(l.made)
	return err
}

// Leave implements [blob.HeldLock].
func (l *PathLock) Leave() error { return leaveFile(l.file) }

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

// ErrFolder reports a folder that cannot be made, or in which no file can be made.
var ErrFolder = errors.New("the folder cannot be made")

// folderError is an ErrFolder. It does not wrap fs.ErrNotExist, which callers take for a
// missing object.
type folderError struct {
	text  string
	cause error
}

func (e *folderError) Error() string { return fmt.Sprintf("%s: %v", e.text, e.cause) }

func (e *folderError) Is(target error) bool { return target == ErrFolder }

func (e *folderError) Unwrap() error {
	if errors.Is(e.cause, fs.ErrNotExist) {
		return nil
	}
	return e.cause
}

// explainFolder returns an ErrFolder if err means that dir was not made, or that it takes no
// files.
func explainFolder(dir string, err error) error {
	e, ok := errors.AsType[*fs.PathError](err)
	switch {
	case ok && (e.Op == "mkdir" || errors.Is(err, syscall.ENOTDIR)):
		return &folderError{fmt.Sprintf("the folder %s cannot be made", e.Path), e.Err}
	case ok && errors.Is(err, fs.ErrNotExist):
		return &folderError{fmt.Sprintf("no file can be made in the folder %s", dir), e.Err}
	}
	return err
}

// SyncDir makes changes of names in a directory durable. A directory that this process may
// not read belongs to another user; SyncDir skips it.
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
