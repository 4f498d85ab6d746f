package convert

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cairn-ckpt/cairn/storage"
)

// Place is a path of the file system at which a checkpoint appears in one step,
// when it is complete. Until then it grows in a directory beside it.
type Place struct {
	// Path is where the checkpoint appears: a directory, or a file if File is
	// set.
	Path string
	// File is the name by which the writers call the file that is the
	// checkpoint. Empty: it is a directory.
	File string
	// Overwrite replaces what is there.
	Overwrite bool

	step func(name string) error // for tests: called before each step
}

// Staging returns the directory beside Path in which the checkpoint is made. It
// is on the same file system, unless Path is a mount point.
func (p *Place) Staging() string { return p.beside(".cairn-convert") }

// beside returns the hidden name beside Path with that ending.
func (p *Place) beside(ending string) string {
	path := filepath.Clean(p.Path)
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+ending)
}

// aside is where the old checkpoint is for a moment, on systems that cannot
// exchange two names.
func (p *Place) aside() string { return p.beside(".cairn-old") }

// Check returns an error that wraps storage.ErrExists where there is something
// at Path that must not be replaced. An empty directory may be. First it puts
// back what an earlier Publish, killed between two steps, had moved aside.
func (p *Place) Check() error {
	if err := p.restore(); err != nil {
		return err
	}
	what, err := p.occupied()
	if err != nil || what == "" {
		return err
	}
	if !p.Overwrite {
		return fmt.Errorf("%w: %s is %s", storage.ErrExists, p.Path, what)
	}
	return nil
}

// Prepare is Check, and removes a staging directory that no conversion began:
// such as the rest of an old checkpoint that was replaced. Run looks after the
// others.
func (p *Place) Prepare() error {
	if err := p.Check(); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(p.Staging(), filepath.FromSlash(recordName)))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(p.Staging())
	}
	return err
}

// Discard removes the staging directory if nothing was finished in it.
func (p *Place) Discard() error {
	entries, err := os.ReadDir(filepath.Join(p.Staging(), filepath.FromSlash(resultsPrefix)))
	if len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(p.Staging())
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

// occupied says what is at Path. Nothing: an empty text.
func (p *Place) occupied() (string, error) {
	fi, err := os.Lstat(p.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !fi.IsDir() {
		return "a file", nil
	}
	entries, err := os.ReadDir(p.Path)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 && p.File == "" {
		return "", nil
	}
	return "a directory", nil
}

// Publish makes the checkpoint in the staging directory appear at Path, in one
// step, and removes what was there before and the staging directory. It may be
// called again after it was interrupted.
func (p *Place) Publish() error {
	if err := p.Check(); err != nil {
		return err
	}
	if err := p.appear(); err != nil {
		return err
	}
	if err := p.sync(); err != nil {
		return err
	}
	// From here on the new checkpoint is there, and only rubbish is left.
	for _, rest := range []string{p.Staging(), p.aside()} {
		if err := p.do("remove "+filepath.Base(rest), func() error { return os.RemoveAll(rest) }); err != nil {
			return err
		}
	}
	return nil
}

// appear moves the new checkpoint to Path.
func (p *Place) appear() error {
	from := p.Staging()
	if p.File != "" {
		from = filepath.Join(from, p.File)
	}
	what, err := p.occupied()
	if err != nil {
		return err
	}
	if what == "a directory" || what != "" && p.File == "" {
		return p.replace(from)
	}
	if what == "" { // at most an empty directory
		if err := os.Remove(p.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return p.do("rename", func() error { return os.Rename(from, p.Path) })
}

// replace puts the new checkpoint in the place of the old one, and the old one
// where the new one was, or aside.
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

// sync makes the renaming durable.
func (p *Place) sync() error {
	return p.do("sync", func() error {
		d, err := os.Open(filepath.Dir(filepath.Clean(p.Path)))
		if err != nil {
			return err
		}
		defer d.Close()
		if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
			return err
		}
		return nil
	})
}

func (p *Place) do(name string, fn func() error) error {
	if p.step != nil {
		if err := p.step(name); err != nil {
			return err
		}
	}
	return fn()
}
