package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
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

// SweepTemp implements [blob.Sweeper]. On Linux it spares the files of every
// living writer on this machine, whatever their age; elsewhere, and on network
// file systems without locks, age is all it goes by.
func (s *Store) SweepTemp(ctx context.Context, olderThan time.Duration) (int, error) {
	top, err := os.OpenRoot(s.dir)
	if gone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, s.fail("sweep", "", err)
	}
	defer top.Close()
	sw := sweeper{s: s, ctx: ctx, top: top, before: time.Now().Add(-olderThan)}
	err = fs.WalkDir(top.FS(), ".", sw.visit)
	if err := errors.Join(append(sw.errs, err)...); err != nil {
		return sw.n, s.fail("sweep", "", err)
	}
	return sw.n, nil
}

type sweeper struct {
	s      *Store
	ctx    context.Context
	top    *os.Root
	before time.Time

	n    int
	errs []error
}

// visit removes one abandoned file. An error of one does not keep it from the
// others.
func (w *sweeper) visit(name string, d fs.DirEntry, err error) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if err == nil && d.Type().IsRegular() && strings.HasPrefix(d.Name(), blob.Reserved) {
		err = w.sweep(name)
	}
	if err != nil && !gone(err) {
		w.errs = append(w.errs, err)
	}
	return nil
}

func (w *sweeper) sweep(name string) error {
	fi, err := w.top.Lstat(name)
	if err != nil || fi.ModTime().After(w.before) {
		return err
	}
	f, err := w.top.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if locked(f) {
		return nil
	}
	if err := w.top.Remove(name); err != nil {
		return err
	}
	w.n++
	w.s.prune(w.top, path.Dir(name))
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
