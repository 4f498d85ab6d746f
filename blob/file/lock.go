package file

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

// lockPrefix begins the names of the files that are locks.
const lockPrefix = blob.Reserved + "lock-"

// maxLock bounds the size of a lock that is read, and maxLocks that of all locks
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

// reserved calls fn for each regular file of dir whose name is reserved. It ignores
// files that disappear meanwhile, and continues after other errors.
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
