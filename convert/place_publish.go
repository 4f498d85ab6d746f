package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Publish makes the checkpoint in the staging directory appear at Path and
// removes the one that it replaces and the staging directory. After an
// interruption Prepare comes first, and the checkpoint is made again.
func (p *Place) Publish() error { return p.locked(p.publish) }

func (p *Place) publish() error {
	o, err := p.check()
	if err != nil {
		return err
	}
	if err := p.appear(o); err != nil {
		return err
	}
	if err := p.do("sync", func() error { return syncDir(filepath.Dir(filepath.Clean(p.Path))) }); err != nil {
		return err
	}
	// The new checkpoint is in place. What follows removes the old one.
	for _, rest := range []string{p.Staging(), p.aside()} {
		if err := p.do("remove "+filepath.Base(rest), func() error { return os.RemoveAll(rest) }); err != nil {
			return err
		}
	}
	return nil
}

// appear moves the new checkpoint to Path. o is what is there.
func (p *Place) appear(o *occupant) error {
	from := p.Staging()
	if p.File != "" {
		from = filepath.Join(from, p.File)
	}
	switch {
	case o.kind == aFolder:
		return p.moveIn()
	case o.kind == aCheckpoint:
		if err := p.adopt(o.files); err != nil {
			return err
		}
		return p.replace(from)
	case o.kind == aSingleFile && p.File == "":
		return p.replace(from)
	case o.kind == nothing: // at most an empty directory
		if err := os.Remove(p.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return p.do("rename", func() error { return os.Rename(from, p.Path) })
}

// replace exchanges the new checkpoint and the old one, or moves the old one aside
// first.
func (p *Place) replace(from string) error {
	err := p.do("exchange", func() error { return exchange(from, p.Path) })
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if err := p.do("remove old", func() error { return os.RemoveAll(p.aside()) }); err != nil {
		return err
	}
	if err := p.do("move aside", func() error { return os.Rename(p.Path, p.aside()) }); err != nil {
		return err
	}
	return p.do("rename", func() error { return os.Rename(from, p.Path) })
}

// restore undoes half a replacement.
func (p *Place) restore() error {
	_, err := os.Lstat(p.aside())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Lstat(p.Path); !errors.Is(err, fs.ErrNotExist) {
		return err // the new one is there; Publish removes the old one
	}
	return os.Rename(p.aside(), p.Path)
}

// syncDir makes changes of names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

func (p *Place) do(name string, fn func() error) error {
	if p.step != nil {
		if err := p.step(name); err != nil {
			return err
		}
	}
	return fn()
}

// movingName is the list of the files that are being moved into a folder, in
// their order. While it is there, those that have arrived are to be taken back,
// unless the last has.
const movingName = JournalPrefix + "moving.json"

// moveIn moves the new files into the folder at Path, in which nothing has their
// names.
func (p *Place) moveIn() error {
	names, err := p.newFiles()
	if err != nil {
		return err
	}
	for _, n := range names {
		if exists(p.inPath(n)) {
			return fmt.Errorf("%w: %s", ErrOccupied, p.inPath(n))
		}
	}
	if err := p.do("list", func() error { return p.writeMoving(names) }); err != nil {
		return err
	}
	for i, n := range names {
		if i == len(names)-1 { // nothing is a checkpoint before its data is there for good
			if err := p.do("sync", func() error { return syncDir(p.Path) }); err != nil {
				return err
			}
		}
		if err := p.do("move "+n, func() error { return move(p.inStaging(n), p.inPath(n)) }); err != nil {
			return err
		}
	}
	return p.do("sync", func() error { return syncDir(p.Path) })
}

func (p *Place) inStaging(name string) string {
	return filepath.Join(p.Staging(), filepath.FromSlash(name))
}

func (p *Place) inPath(name string) string { return filepath.Join(p.Path, filepath.FromSlash(name)) }

// newFiles returns the files of the new checkpoint, what makes it one last.
func (p *Place) newFiles() ([]string, error) {
	var data, last []string
	err := filepath.WalkDir(p.Staging(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(p.Staging(), path)
		name := filepath.ToSlash(rel)
		switch {
		case strings.HasPrefix(name, JournalPrefix):
		case p.Record != nil && p.Record(name):
			last = append(last, name)
		default:
			data = append(data, name)
		}
		return err
	})
	return append(data, last...), err
}

// writeMoving writes the list in one step.
func (p *Place) writeMoving(names []string) error {
	b, err := json.Marshal(names)
	if err != nil {
		return err
	}
	path := p.inStaging(movingName)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// moving returns the list of a move that has not come to its end, or nothing.
func (p *Place) moving() ([]string, error) {
	b, err := os.ReadFile(p.inStaging(movingName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	if err == nil {
		err = json.Unmarshal(b, &names)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.inStaging(movingName), err)
	}
	if len(names) == 0 || !exists(p.inStaging(names[len(names)-1])) {
		return nil, nil // all has arrived
	}
	return names, nil
}

// moveBack takes back what an earlier Publish, killed before the last file, had
// moved into the folder.
func (p *Place) moveBack() error {
	names, err := p.moving()
	if err != nil || len(names) == 0 {
		return err
	}
	for _, n := range slices.Backward(names) {
		if !filepath.IsLocal(filepath.FromSlash(n)) || exists(p.inStaging(n)) || !exists(p.inPath(n)) {
			continue
		}
		if err := move(p.inPath(n), p.inStaging(n)); err != nil {
			return err
		}
	}
	return os.Remove(p.inStaging(movingName))
}

// move gives a file another name, in a folder that is made if need be.
func move(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

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

// clash adds to fs.ErrExist which file of the old folder would be lost.
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
