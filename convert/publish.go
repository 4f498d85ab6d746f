package convert

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	// From here on the new checkpoint is there, and only rubbish is left.
	for _, rest := range []string{p.Staging(), p.aside()} {
		if err := p.do("remove "+filepath.Base(rest), func() error { return os.RemoveAll(rest) }); err != nil {
			return err
		}
	}
	return nil
}

// appear moves the new checkpoint to Path, where o is.
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
