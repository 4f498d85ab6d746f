package file

import (
	"context"
	"os"
	"path"
)

// Remove implements [blob.Store]. It is not synced.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := s.check(ctx, name); err != nil {
		return s.fail("remove", name, err)
	}
	top, err := os.OpenRoot(s.dir)
	if err == nil {
		err = s.remove(top, name)
		top.Close()
	}
	if err != nil && !gone(err) {
		return s.fail("remove", name, err)
	}
	return nil
}

func (s *Store) remove(top *os.Root, name string) error {
	if fi, err := top.Lstat(name); err != nil || fi.IsDir() {
		return err // a directory is no object
	}
	if err := top.Remove(name); err != nil {
		return err
	}
	s.prune(top, path.Dir(name))
	return nil
}

// Cool implements [blob.Cooler] on Linux.
func (s *Store) Cool(ctx context.Context, name string) error {
	if err := s.check(ctx, name); err != nil {
		return s.fail("cool", name, err)
	}
	f, _, err := openRegular(s.path(name))
	if err != nil {
		return s.fail("cool", name, err)
	}
	defer f.Close()
	if err := dropCache(f); err != nil {
		return s.fail("cool", name, err)
	}
	return nil
}
