package convert

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage"
)

// ErrOccupied reports a path with something that is not a checkpoint and must not be
// replaced.
var ErrOccupied = errors.New("something else is there")

// Place is a path of the file system at which a checkpoint appears in one step,
// when it is complete. Until then it grows in a directory beside it.
//
// Only a checkpoint is ever replaced, and only with Overwrite: files in its
// folder that are not part of it stay in the new one. Into a folder without a
// checkpoint the new files are moved one after the other, with Overwrite too, the
// one that makes them a checkpoint last. Nothing that was there is touched.
//
// Two conversions to one place would take each other's files for their own:
// Lock keeps the second one away. A Place is for one goroutine.
type Place struct {
	// Path is the path of the checkpoint: a directory, or a file if File is set.
	Path string
	// File is the name by which the writers call the file that is the
	// checkpoint. Empty: it is a directory.
	File string
	// Overwrite replaces the checkpoint that is there.
	Overwrite bool
	// Look returns the files of the checkpoint at a path, relative to it and with
	// slashes; for a checkpoint that is a file they do not matter. The error wraps
	// storage.ErrNotFound if there is no checkpoint. After any other error nothing is
	// replaced. Nil: nothing is a checkpoint.
	Look func(path string) ([]string, error)
	// Accept, if not nil, is asked about a new folder that is complete, with the
	// files of the old one that stay, before it takes the old one's place.
	Accept func(dir string) error
	// Record reports whether a file of the new checkpoint is its record, which is
	// moved last. Nil: no file is.
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

// aside returns the path of the old checkpoint while it is replaced, on systems that
// cannot exchange two names.
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
	aFile                           // that is not a checkpoint
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

// mayReplace returns an error if the new checkpoint must not replace o.
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

// special returns what a path is that is neither a file nor a folder.
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
// checkpoint that was replaced. Run continues or removes the others.
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

// ErrBusy reports a place at which another conversion is at work.
var ErrBusy = errors.New("another conversion to it is running")

// Lock makes the place and its staging directory the caller's own, until Unlock
// or the end of the process. A conversion holds it from before Prepare until after
// Publish or Discard. Locking it twice is not an error.
//
// The error wraps ErrBusy if another conversion holds it, in this process or in
// another one, and errors.ErrUnsupported if the file system has no locks.
func (p *Place) Lock() error {
	if p.lock != nil {
		return nil
	}
	l, err := file.LockPath(p.lockPath())
	if errors.Is(err, blob.ErrLocked) {
		return fmt.Errorf("%s: %w", p.Path, ErrBusy)
	}
	p.lock = l
	return err
}

// Unlock gives up what Lock took. It does nothing if that is not held.
func (p *Place) Unlock() error {
	l := p.lock
	if l == nil {
		return nil
	}
	p.lock = nil
	return l.Unlock()
}

// lockPath is the file that is locked. It lies beside the staging directory and
// not inside: Publish renames or removes that directory.
func (p *Place) lockPath() string { return p.beside(lockEnding) }

// locked runs fn under the lock, which it takes for that time unless it is held.
// If the file system has no locks, it runs fn without: Lock reports that.
func (p *Place) locked(fn func() error) (err error) {
	if p.lock == nil {
		if err := p.Lock(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		defer func() { err = errors.Join(err, p.Unlock()) }()
	}
	return fn()
}

// The endings of the hidden names beside Place.Path.
const (
	stagingEnding = ".cairn-convert"
	asideEnding   = ".cairn-old"
	lockEnding    = ".cairn-lock"
)

// Unfinished is what a conversion that has not finished has beside its target.
type Unfinished struct {
	// Path is the path of the checkpoint, and Staging the directory in which it is
	// made. Staging may not exist: the conversion may have left only its lock.
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

// IsStaging reports whether name is that of a directory or a file that a conversion
// makes beside its target.
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
