package file

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// tempName returns the name of a new temporary file in root. It begins with the
// tag of this host, so that a sweep can identify its owner.
func tempName(root *os.Root) string { return blob.Reserved + hostTag(root) + "-" + rand.Text() }

// tagOf returns the tag in the name of a temporary file.
func tagOf(name string) string {
	tag, _, ok := strings.Cut(strings.TrimPrefix(name, blob.Reserved), "-")
	if !ok {
		return ""
	}
	return tag
}

// lockTemp marks a new temporary file as one of a living process. It reports
// false if a sweep took the file before it was locked. If there are no locks,
// only its age protects the file.
func lockTemp(root *os.Root, f *os.File, name string) (bool, error) {
	err := lock(f)
	if errors.Is(err, blob.ErrLocked) {
		return false, nil
	}
	if err != nil {
		return true, nil
	}
	return isAt(f, func() (fs.FileInfo, error) { return root.Lstat(name) })
}

// Temps implements [blob.Sweeper].
func (s *Store) Temps(ctx context.Context, dir string) ([]blob.Temp, error) {
	var out []blob.Temp
	err := s.temps(ctx, dir, func(_ *os.Root, _ *os.File, t blob.Temp) error {
		out = append(out, t)
		return nil
	})
	if err != nil {
		return nil, s.fail("temps", dir, err)
	}
	return out, nil
}

// SweepTemp implements [blob.Sweeper].
func (s *Store) SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (int, error) {
	n, before := 0, time.Now().Add(-olderThan)
	err := s.temps(ctx, dir, func(root *os.Root, f *os.File, t blob.Temp) error {
		if t.Owner == blob.OwnerAlive || t.Owner == blob.OwnerUnknown && t.ModTime.After(before) {
			return nil
		}
		if err := lock(f); errors.Is(err, blob.ErrLocked) { // a writer has it after all
			return nil
		}
		if err := root.Remove(path.Base(t.Name)); err != nil {
			return err
		}
		n++
		return nil
	})
	if n > 0 && dir != "" {
		if top, err := os.OpenRoot(s.dir); err == nil {
			s.prune(top, dir)
			top.Close()
		}
	}
	if err != nil {
		return n, s.fail("sweep", dir, err)
	}
	return n, nil
}

// temps calls fn for each temporary file in dir that is no lock. The file is
// open for that time.
func (s *Store) temps(ctx context.Context, dir string, fn func(*os.Root, *os.File, blob.Temp) error) error {
	return s.reserved(ctx, dir, func(root *os.Root, fi fs.FileInfo) error {
		if strings.HasPrefix(fi.Name(), lockPrefix) {
			return nil
		}
		f, err := root.OpenFile(fi.Name(), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		t := blob.Temp{Name: path.Join(dir, fi.Name()), Size: fi.Size(), ModTime: fi.ModTime()}
		t.Owner = owner(probe(f), root, tagOf(fi.Name()))
		return fn(root, f, t)
	})
}
