package convert

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// The endings of the hidden names beside Place.Path.
const (
	stagingEnding = ".cairn-convert"
	asideEnding   = ".cairn-old"
	lockEnding    = ".cairn-lock"
)

// Unfinished is what a conversion that has not finished has beside its target.
type Unfinished struct {
	// Path is where the checkpoint would appear, and Staging the directory that
	// has been made for it. Staging need not be there: the conversion may have
	// left its lock only.
	Path, Staging string
	// Bytes are those of all files.
	Bytes int64
	// ModTime is when the last file was changed.
	ModTime time.Time
	// Owner is what became of the process of the conversion.
	Owner blob.Owner
}

// FindUnfinished returns the conversions to paths in the directory dir that have
// not finished. They may still run.
func FindUnfinished(dir string) ([]Unfinished, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []Unfinished
	for _, e := range entries {
		name, ok := targetOf(e.Name())
		path := filepath.Join(dir, name)
		if !ok || slices.ContainsFunc(out, func(u Unfinished) bool { return u.Path == path }) {
			continue
		}
		u, err := UnfinishedAt(path)
		if err != nil {
			return out, err
		}
		if u != nil {
			out = append(out, *u)
		}
	}
	return out, nil
}

// IsStaging reports whether a conversion gives that name to a directory or a file
// of its own, beside its target.
func IsStaging(name string) bool {
	_, ok := targetOf(name)
	return ok
}

// targetOf returns the base name of the target that a hidden name is of.
func targetOf(name string) (string, bool) {
	for _, ending := range []string{stagingEnding, asideEnding, lockEnding} {
		if target, ok := strings.CutSuffix(name, ending); ok && len(target) > 1 && target[0] == '.' {
			return target[1:], true
		}
	}
	return "", false
}

// UnfinishedAt returns the unfinished conversion to path, or nil if no conversion
// to path was interrupted.
func UnfinishedAt(path string) (*Unfinished, error) {
	p := &Place{Path: path}
	u := &Unfinished{Path: p.Path, Staging: p.Staging()}
	var err error
	// The owner comes first: files that a conversion makes after that are of one
	// that Drop cannot lock out.
	if u.Owner, err = file.PathOwner(p.lockPath()); err != nil {
		return nil, err
	}
	found := false
	own := []string{p.Staging(), p.lockPath()}
	if exists(p.Path) { // else the old checkpoint is there, and comes back
		own = append(own, p.aside())
	}
	for _, top := range own {
		err := filepath.WalkDir(top, func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := d.Info()
			if err != nil {
				return err
			}
			found = true
			if !d.IsDir() {
				u.Bytes += fi.Size()
			}
			if fi.ModTime().After(u.ModTime) {
				u.ModTime = fi.ModTime()
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may go meanwhile
			return nil, err
		}
	}
	if !found {
		return nil, nil
	}
	return u, nil
}

// Drop removes what a conversion to Path that has not finished left, so that it
// cannot be continued. What its Publish had begun is undone first. The error wraps
// ErrBusy if the conversion still runs.
func (p *Place) Drop() error {
	return p.locked(func() error {
		if err := p.undo(); err != nil {
			return err
		}
		if exists(p.Path) {
			if err := os.RemoveAll(p.aside()); err != nil {
				return err
			}
		}
		return os.RemoveAll(p.Staging())
	})
}
