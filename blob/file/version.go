package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// Versions implements [blob.Versioner].
func (s *Store) Versions() bool { return true }

// version returns the version of an object: the time and the size of its file. The
// number of the inode is not a part of it, because some file systems change it when
// they forget the file.
func version(fi fs.FileInfo) string {
	return fmt.Sprintf("%x-%x", fi.ModTime().UnixNano(), fi.Size())
}

// replaceWait bounds how long a conditional Commit waits for another one that
// replaces the same object. A Commit holds the lock for two system calls, so a longer
// wait means that its process is suspended.
const replaceWait = 10 * time.Second

// exclusively runs fn, which compares the object with IfVersion and replaces it, while
// no other process does so. Without locks in the file system it just runs fn. If the
// holder of the lock does not go on, the error wraps blob.ErrLocked: to go on without the
// lock could replace an object that the holder has not seen, or the reverse.
func (w *writer) exclusively(ctx context.Context, fn func() error) error {
	name := w.s.path(path.Dir(w.name) + "/" + lockPrefix + "replace-" + path.Base(w.name))
	wait, cancel := context.WithTimeout(ctx, replaceWait)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		l, err := LockPath(name)
		if err == nil {
			defer l.Release()
		}
		if !errors.Is(err, blob.ErrLocked) {
			return fn()
		}
		select {
		case <-time.After(pause):
		case <-wait.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("another process has been replacing %s for %v, and may be suspended: %w", w.name, replaceWait, err)
		}
	}
}

// checkVersion returns an error that wraps blob.ErrChanged if the object has another
// version than IfVersion, or does not exist. It opens the file, because network file
// systems return older descriptions of files that are not opened.
func (w *writer) checkVersion() error {
	f, fi, err := openRegular(w.s.path(w.name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("it was removed: %w", blob.ErrChanged)
	}
	if err != nil {
		return err
	}
	f.Close()
	if version(fi) != w.opts.IfVersion {
		return blob.ErrChanged
	}
	return nil
}

// distinguish gives the new file another version than the object that it replaces, if
// they have the same one: the clock of the file system may not have moved on. It returns
// the description of the new file.
func (w *writer) distinguish(fi fs.FileInfo) (fs.FileInfo, error) {
	old, err := os.Stat(w.s.path(w.name))
	if err != nil {
		return fi, nil // there is nothing to replace, or rename returns the error
	}
	for later := time.Millisecond; version(old) == version(fi) && later < time.Minute; later *= 10 {
		at := old.ModTime().Add(later)
		if err := w.dir.Chtimes(w.tmp, at, at); err != nil {
			return nil, err
		}
		if fi, err = w.dir.Stat(w.tmp); err != nil {
			return nil, err
		}
	}
	return fi, nil
}
