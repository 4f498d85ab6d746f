package file

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/cairn-ckpt/cairn/blob"
)

// List implements [blob.Store]. It reads one directory at a time, and only
// those where a name with the prefix can be.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		l := lister{s: s, ctx: ctx, prefix: prefix, yield: yield}
		if err := l.run(); err != nil {
			yield(blob.Info{}, s.fail("list", prefix, err))
		}
	}
}

// errStop says that the loop was left.
var errStop = errors.New("stop")

type lister struct {
	s      *Store
	ctx    context.Context
	prefix string
	yield  func(blob.Info, error) bool
}

func (l *lister) run() error {
	if err := blob.CheckPrefix(l.prefix); err != nil {
		return err
	}
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	dir, _ := path.Split(l.prefix)
	if !l.reachable(dir) {
		return nil
	}
	err := l.walk(dir)
	if err == errStop {
		return nil
	}
	return err
}

// reachable reports whether the walk from the top would come to dir, which is
// empty or ends with a slash: it does not go through links.
func (l *lister) reachable(dir string) bool {
	for i := range len(dir) {
		if dir[i] != '/' {
			continue
		}
		fi, err := os.Lstat(l.s.path(dir[:i]))
		if err != nil || !fi.IsDir() {
			return false
		}
	}
	return true
}

// walk yields the objects in and below dir, which is empty or ends with a
// slash.
func (l *lister) walk(dir string) error {
	entries, err := os.ReadDir(l.s.path(dir))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, key := range keys(entries) {
		if l.ctx.Err() != nil {
			return context.Cause(l.ctx)
		}
		if err := l.visit(dir + key); err != nil {
			return err
		}
	}
	return nil
}

// visit yields the object name, or where name ends with a slash what is below.
func (l *lister) visit(name string) error {
	if strings.HasSuffix(name, "/") {
		if strings.HasPrefix(name, l.prefix) && blob.CheckPrefix(name) == nil {
			return l.walk(name)
		}
		return nil
	}
	if !strings.HasPrefix(name, l.prefix) || blob.CheckName(name) != nil {
		return nil
	}
	fi, err := os.Stat(l.s.path(name))
	if gone(err) || err == nil && !fi.Mode().IsRegular() {
		return nil
	}
	if err != nil {
		return err
	}
	if !l.yield(info(name, fi), nil) {
		return errStop
	}
	return nil
}

// keys returns the names of entries, a slash behind those of directories, in
// the order in which the objects in and below them come: "a-b", "a/b", "a0".
func keys(entries []fs.DirEntry) []string {
	ks := make([]string, len(entries))
	for i, e := range entries {
		ks[i] = e.Name()
		if e.IsDir() {
			ks[i] += "/"
		}
	}
	slices.Sort(ks)
	return slices.Compact(ks)
}

// gone reports whether err says that something is not there, or no longer, or
// is a link that leads nowhere.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}
