package convert

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage"
)

// Publish makes the checkpoint in the staging directory appear at Path. Then it removes
// the checkpoint that it replaces and the staging directory. After an interruption
// Prepare comes first, and the checkpoint is made again.
func (p *Place) Publish() error { return p.locked(p.publish) }

func (p *Place) publish() error {
	old, files, err := p.check()
	if err != nil {
		return err
	}
	if p.base != nil && *p.base != p.stamp(old, files) {
		return fmt.Errorf("%w: another program has saved to %s since the conversion began; the same conversion, started again, replaces that", storage.ErrChanged, p.Path)
	}

	if err := p.appear(old, files); err != nil {
		return err
	}
	if err := p.do("sync", func() error { return file.SyncDir(filepath.Dir(filepath.Clean(p.Path))) }); err != nil {
		return err
	}

	// The new checkpoint is complete. The staging directory may be the old one now.
	for _, rest := range []string{p.Staging(), p.aside()} {
		if err := p.do("remove "+filepath.Base(rest), func() error { return os.RemoveAll(rest) }); err != nil {
			return err
		}
	}

	return nil
}

// do runs a step of Publish.
func (p *Place) do(name string, fn func() error) error {
	if p.step != nil {
		if err := p.step(name); err != nil {
			return err
		}
	}
	return fn()
}

// appear makes the new checkpoint appear at Path, where old is. files are the files of the
// old checkpoint.
func (p *Place) appear(old occupant, files []string) error {
	from := p.Staging()
	if p.File != "" {
		from = filepath.Join(from, p.File)
	}

	switch {
	case old == otherFolder:
		return p.addTo()
	case old == checkpointFolder:
		if err := p.adopt(files); err != nil {
			return err
		}
		return p.replace(from)
	case old == checkpointFile && p.File == "":
		return p.replace(from)
	case old == nothing: // at most an empty folder
		if err := os.Remove(p.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}

	return p.do("rename", func() error { return os.Rename(from, p.Path) })
}

// replace exchanges the new checkpoint and the old one. If the file system cannot do
// that, it moves the old one aside first.
func (p *Place) replace(from string) error {
	err := p.do("exchange", func() error { return file.Exchange(from, p.Path) })
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

// undo undoes the steps of an interrupted Publish: it moves the old checkpoint back to
// Path, or removes the files that were added to a folder.
func (p *Place) undo() error {
	if !exists(p.Path) && exists(p.aside()) {
		if err := os.Rename(p.aside(), p.Path); err != nil {
			return err
		}
	}

	added, err := p.moved()
	for _, n := range added {
		err = errors.Join(err, os.Remove(p.inPath(n)))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(p.inStaging(addingName))
}

// addingName is a directory that exists in the staging directory while addTo runs.
const addingName = journalPrefix + "adding"

// addTo adds the new files to the folder at Path, the record last. It fails if the
// folder has a file of the same name.
func (p *Place) addTo() error {
	names, err := p.newFiles()
	if err != nil {
		return err
	}

	for _, n := range names {
		if exists(p.inPath(n)) {
			return fmt.Errorf("%w: %s", ErrOccupied, p.inPath(n))
		}
	}

	mark := func() error {
		return errors.Join(os.MkdirAll(p.inStaging(addingName), 0o777), file.SyncDir(p.inStaging(journalPrefix)), file.SyncDir(p.Staging()))
	}
	if err := p.do("mark", mark); err != nil {
		return err
	}

	for i, n := range names {
		if i == len(names)-1 { // the data must be durable before the record appears
			if err := p.do("sync", func() error { return file.SyncDir(p.Path) }); err != nil {
				return err
			}
		}

		add := func() error {
			return errors.Join(os.MkdirAll(filepath.Dir(p.inPath(n)), 0o777), link(p.inStaging(n), p.inPath(n)))
		}
		if err := p.do("add "+n, add); err != nil {
			return err
		}
	}

	return p.do("sync", func() error { return file.SyncDir(p.Path) })
}

// moved returns the files that an interrupted Publish has added to the folder at Path. If it
// has added all of them, the checkpoint is complete, and moved returns no files.
func (p *Place) moved() ([]string, error) {
	if !exists(p.inStaging(addingName)) {
		return nil, nil
	}
	names, err := p.newFiles()
	added := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !isLinked(p.inStaging(n), p.inPath(n)) })
	if len(added) == len(names) {
		return nil, err
	}
	return added, err
}

func (p *Place) inStaging(name string) string {
	return filepath.Join(p.Staging(), filepath.FromSlash(name))
}

func (p *Place) inPath(name string) string { return filepath.Join(p.Path, filepath.FromSlash(name)) }

// newFiles returns the files of the new checkpoint, the record last.
func (p *Place) newFiles() ([]string, error) {
	var data, record []string
	err := filepath.WalkDir(p.Staging(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		rel, err := filepath.Rel(p.Staging(), path)
		name := filepath.ToSlash(rel)
		switch {
		case strings.HasPrefix(name, journalPrefix):
		case p.Record != nil && p.Record(name):
			record = append(record, name)
		default:
			data = append(data, name)
		}

		return err
	})
	return append(data, record...), err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// adopt links those files of the old folder that are not part of the old checkpoint
// into the new one. The old folder does not change until the new one replaces it.
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

		err = p.do("adopt", func() error { return link(path, to) })
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w: %s is not part of the old checkpoint, and would be lost to a file of the new one", ErrOccupied, path)
		}
		return err
	})
	if err != nil {
		return err
	}

	if err := file.SyncDir(p.Staging()); err != nil {
		return err
	}
	if p.Accept == nil {
		return nil
	}
	return p.Accept(p.Staging())
}

// link makes a file or symbolic link available at a second path. If the file system
// has no hard links, it copies the file, with its time.
func link(from, to string) error {
	fi, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}

	if err := os.Link(from, to); err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return copyFile(from, to, fi)
}

// isLinked reports whether to is the result of link.
func isLinked(from, to string) bool {
	a, err := os.Lstat(from)
	b, err2 := os.Lstat(to)
	return err == nil && err2 == nil && (os.SameFile(a, b) || a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()))
}

// copyFile copies a file to the new path to, with the mode and the time of fi.
func copyFile(from, to string, fi fs.FileInfo) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()

	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fi.Mode().Perm())
	if err != nil {
		return err
	}

	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Sync(), dst.Close(), os.Chtimes(to, fi.ModTime(), fi.ModTime())); err != nil {
		err = errors.Join(err, os.Remove(to))
	}
	return err
}
