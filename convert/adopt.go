package convert

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// adopt gives the new checkpoint those files of the old folder that were no part
// of the old checkpoint. They are linked, so that the old folder stays as it is
// until the new one takes its place.
func (p *Place) adopt(owned []string) error {
	err := filepath.WalkDir(p.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == p.Path {
			return err
		}
		name, err := filepath.Rel(p.Path, path)
		if err != nil {
			return err
		}
		to := filepath.Join(p.Staging(), name)
		switch {
		case d.IsDir():
			return os.MkdirAll(to, 0o777)
		case slices.Contains(owned, filepath.ToSlash(name)):
			return nil
		}
		return p.do("adopt", func() error { return p.adoptFile(path, to, d) })
	})
	if err != nil {
		return err
	}
	if err := syncDir(p.Staging()); err != nil {
		return err
	}
	if p.Accept == nil {
		return nil
	}
	return p.Accept(p.Staging())
}

// adoptFile makes a file of the old folder one of the new folder too.
func (p *Place) adoptFile(from, to string, d fs.DirEntry) error {
	if d.Type()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return p.clash(os.Symlink(target, to), from)
	}
	err := os.Link(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return p.clash(err, from)
	}
	return p.clash(copyFile(from, to), from) // not every file system has links
}

// clash says which file is in the way.
func (p *Place) clash(err error, file string) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s is no part of the old checkpoint, and would be lost to a file of the new one", ErrOccupied, file)
	}
	return err
}

// copyFile makes the new file to, with the content and the time of from.
func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	fi, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fi.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err = io.Copy(dst, src); err == nil {
		err = dst.Sync()
	}
	if err = errors.Join(err, dst.Close()); err == nil {
		err = os.Chtimes(to, fi.ModTime(), fi.ModTime())
	}
	if err != nil {
		err = errors.Join(err, os.Remove(to))
	}
	return err
}
