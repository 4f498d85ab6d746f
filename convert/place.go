package convert

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage"
)

// ErrOccupied reports a place with something that is no checkpoint, and that
// nothing may take the place of.
var ErrOccupied = errors.New("something else is there")

// Place is a path of the file system at which a checkpoint appears in one step,
// when it is complete. Until then it grows in a directory beside it.
//
// Only a checkpoint is ever replaced, and only with Overwrite: files in its
// folder that are no part of it stay in the new one. Into a folder without a
// checkpoint the new files are moved one after the other, with Overwrite too, the
// one that makes them a checkpoint last. Nothing that was there is touched.
//
// Two conversions to one place would take each other's files for their own:
// Lock keeps the second one away. A Place is for one goroutine.
type Place struct {
	// Path is where the checkpoint appears: a directory, or a file if File is
	// set.
	Path string
	// File is the name by which the writers call the file that is the
	// checkpoint. Empty: it is a directory.
	File string
	// Overwrite replaces the checkpoint that is there.
	Overwrite bool
	// Look returns the files of the checkpoint at a path, relative to it and with
	// slashes; for a checkpoint that is a file they do not matter. The error wraps
	// storage.ErrNotFound if there is no checkpoint. After any other error what is
	// there is not replaced. Nil: nothing is a checkpoint.
	Look func(path string) ([]string, error)
	// Accept, if not nil, is asked about a new folder that is complete, with the
	// files of the old one that stay, before it takes the old one's place.
	Accept func(dir string) error
	// Record says of a file of the new checkpoint that it makes it one. Nil: none
	// does.
	Record func(name string) bool

	lock *file.PathLock          // nil: not held
	step func(name string) error // for tests: called before each step
}

// Staging returns the directory beside Path in which the checkpoint is made. It
// is on the same file system, unless Path is a mount point.
func (p *Place) Staging() string { return p.beside(stagingEnding) }

// beside returns the hidden name beside Path with that ending.
func (p *Place) beside(ending string) string {
	path := filepath.Clean(p.Path)
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+ending)
}

// aside is where the old checkpoint is for a moment, on systems that cannot
// exchange two names.
func (p *Place) aside() string { return p.beside(asideEnding) }

// occupant is what is at a path.
type occupant struct {
	kind  occupantKind
	mode  fs.FileMode
	files []string // of a checkpoint
	err   error    // why they are not known
}

type occupantKind int

const (
	nothing     occupantKind = iota // or an empty directory
	aFolder                         // without a checkpoint
	aFile                           // that is no checkpoint
	aSpecial                        // no file and no folder, such as a FIFO
	aCheckpoint                     // in a directory
	aSingleFile                     // that is a checkpoint
)

// Check returns an error if there is something at Path that must not be
// replaced: it wraps storage.ErrExists for a checkpoint, and ErrOccupied for
// anything else. It changes nothing and needs no lock; what an earlier Publish,
// killed between two steps, had begun counts as undone.
func (p *Place) Check() error {
	o, err := p.foreseen()
	if err != nil {
		return err
	}
	return p.mayReplace(o)
}

// foreseen returns what will be at Path after undo.
func (p *Place) foreseen() (*occupant, error) {
	if !exists(p.Path) && exists(p.aside()) {
		return p.occupant(p.aside())
	}
	names, err := p.moving()
	if err != nil || len(names) > 0 && exists(p.Path) {
		return &occupant{kind: aFolder}, err
	}
	return p.occupant(p.Path)
}

// check is Check once the rest of an earlier Publish is undone.
func (p *Place) check() (*occupant, error) {
	if err := p.undo(); err != nil {
		return nil, err
	}
	o, err := p.occupant(p.Path)
	if err != nil {
		return nil, err
	}
	return o, p.mayReplace(o)
}

// undo undoes what an earlier Publish, killed between two steps, had begun.
func (p *Place) undo() error { return errors.Join(p.restore(), p.moveBack()) }

// mayReplace says whether the new checkpoint may appear where o is.
func (p *Place) mayReplace(o *occupant) error {
	switch {
	case o.kind == nothing:
		return nil
	case o.kind == aSpecial:
		return fmt.Errorf("%w: %s is %s, which no checkpoint can replace", ErrOccupied, p.Path, special(o.mode))
	case o.kind == aFile:
		return fmt.Errorf("%w: %s is a file that is no checkpoint", ErrOccupied, p.Path)
	case p.File != "" && o.kind != aSingleFile:
		return fmt.Errorf("%w: %s is a folder", ErrOccupied, p.Path)
	case o.kind == aFolder:
		return nil
	case o.err != nil && o.kind == aSingleFile:
		return fmt.Errorf("%w: %s is not a checkpoint that can be opened, and is not replaced: %v", ErrOccupied, p.Path, o.err)
	case o.err != nil:
		return fmt.Errorf("%w: %s holds a checkpoint that cannot be opened, so it is unknown which files belong to it: %v", ErrOccupied, p.Path, o.err)
	case !p.Overwrite:
		return fmt.Errorf("%w: %s", storage.ErrExists, p.Path)
	}
	return nil
}

// occupant returns what is at path.
func (p *Place) occupant(path string) (*occupant, error) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return &occupant{kind: aFile}, nil // a link to nowhere
		}
		return &occupant{}, nil
	}
	if err != nil {
		return nil, err
	}
	if fi.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil || len(entries) == 0 && p.File == "" {
			return &occupant{}, err
		}
	}
	if !fi.IsDir() && !fi.Mode().IsRegular() { // to open it may wait for ever
		return &occupant{kind: aSpecial, mode: fi.Mode()}, nil
	}
	return p.look(path, fi.IsDir()), nil
}

// special says what is neither a file nor a folder.
func special(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "not a regular file"
}

func (p *Place) look(path string, dir bool) *occupant {
	without, with := aFile, aSingleFile
	if dir {
		without, with = aFolder, aCheckpoint
	}
	if p.Look == nil {
		return &occupant{kind: without}
	}
	files, err := p.Look(path)
	if errors.Is(err, storage.ErrNotFound) {
		return &occupant{kind: without}
	}
	return &occupant{kind: with, files: files, err: err}
}

// Prepare is Check, undoes what an earlier Publish had begun, and removes a
// staging directory that no conversion began: such as the rest of an old
// checkpoint that was replaced. Run looks after the others.
func (p *Place) Prepare() error { return p.locked(p.prepare) }

func (p *Place) prepare() error {
	if _, err := p.check(); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(p.Staging(), filepath.FromSlash(recordName)))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(p.Staging())
	}
	return err
}

// Discard removes the staging directory if nothing was finished in it.
func (p *Place) Discard() error { return p.locked(p.discard) }

func (p *Place) discard() error {
	entries, err := os.ReadDir(filepath.Join(p.Staging(), filepath.FromSlash(resultsPrefix)))
	if len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(p.Staging())
}
