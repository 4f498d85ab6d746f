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

// exclusively runs fn, which compares the version of the object and replaces or removes it,
// while no other process does so. Without locks in the file system it just runs fn. If the
// holder of the lock does not go on, the error wraps blob.ErrLocked: to go on without the
// lock could replace an object that the holder has not seen, or the reverse.
func (s *Store) exclusively(ctx context.Context, object string, fn func() error) error {
	name := s.path(path.Dir(object) + "/" + lockPrefix + "replace-" + path.Base(object))
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
			return fmt.Errorf("another process has been replacing %s for %v, and may be suspended: %w", object, replaceWait, err)
		}
	}
}

// checkVersion returns an error that wraps blob.ErrChanged if the object has another
// version than want, or does not exist. It opens the file, because network file
// systems return older descriptions of files that are not opened.
func (s *Store) checkVersion(name, want string) error {
	f, fi, err := openRegular(s.path(name))
	if gone(err) {
		return fmt.Errorf("it was removed: %w", blob.ErrRemoved)
	}
	if err != nil {
		return err
	}

	f.Close()
	if version(fi) != want {
		return blob.ErrChanged
	}
	return nil
}

// RemoveVersion implements [blob.VersionRemover]. It syncs the folder.
func (s *Store) RemoveVersion(ctx context.Context, name, version string) error {
	if err := s.check(ctx, name); err != nil {
		return s.fail("remove", name, err)
	}
	if _, err := os.Lstat(s.path(name)); gone(err) { // do not make a folder for the lock
		return s.fail("remove", name, blob.ErrRemoved)
	}

	err := s.exclusively(ctx, name, func() error {
		if err := s.checkVersion(name, version); err != nil {
			return err
		}
		if err := s.step("remove"); err != nil {
			return err
		}

		top, err := os.OpenRoot(s.dir)
		if err != nil {
			return err
		}
		defer top.Close()

		if err := s.remove(top, name); err != nil {
			return err
		}
		return s.syncPath(s.path(path.Dir(name)))
	})
	if err != nil {
		return s.fail("remove", name, err)
	}
	return nil
}

// RemoveFolder implements [blob.FolderRemover].
func (s *Store) RemoveFolder(ctx context.Context, dir string) error {
	if dir == "" {
		if fi, err := os.Lstat(s.dir); err != nil || !fi.IsDir() { // not a link, which os.Remove would remove
			return nil
		}
		_ = os.Remove(s.dir) // it fails if the folder is not empty
		return nil
	}

	if err := s.check(ctx, dir); err != nil {
		return s.fail("remove", dir, err)
	}

	top, err := os.OpenRoot(s.dir)
	if err != nil {
		return nil // there is no such folder
	}
	defer top.Close()

	s.prune(top, dir)
	return nil
}
