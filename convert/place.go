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

// Place is a path of the file system at which a checkpoint appears in one atomic step
// when it is complete. Until then its files are in a staging directory next to it. The
// writers of the format commit there. Their names are then the names of a first save, and
// the checkpoint at Path may have any format.
//
// Only a checkpoint is ever replaced, and only if Overwrite is set. Files in its folder that
// are not part of it become files of the new folder. If Path is a folder without a
// checkpoint, the new files are added to it, the record last. Existing files stay unchanged.
//
// Two conversions to one place would use each other's files. Lock prevents that. A
// Place is for one goroutine.
type Place struct {
	// Path is the path of the checkpoint: a directory, or a file if File is set.
	Path string
	// File is the name of the file that the writers write, if the checkpoint is one
	// file. Empty: it is a directory.
	File string
	// Overwrite replaces the checkpoint that is there.
	Overwrite bool
	// Look returns the files of the checkpoint at a path, relative to it and with slashes, or
	// none if the path is a file. The error wraps storage.ErrNotFound if there is no checkpoint.
	// After any other error no file is replaced. Nil: there is never a checkpoint.
	Look func(path string) ([]string, error)
	// Accept, if not nil, may refuse the new folder, which is complete and includes
	// the files of the old folder that stay, before it replaces the old folder.
	Accept func(dir string) error
	// Record reports whether a file of the new checkpoint is its record, which is
	// added last to a folder. Nil: no file is.
	Record func(name string) bool

	lock *file.PathLock          // nil: not held
	base *string                 // the state of Path that Prepare has found, see stamp; nil: unknown
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

// occupant is the kind of object at a path.
type occupant int

const (
	nothing          occupant = iota // or an empty folder
	otherFolder                      // a folder without a checkpoint
	checkpointFolder                 // a checkpoint that is a folder
	checkpointFile                   // a checkpoint that is a file
)

// Check returns an error if the new checkpoint must not replace the object at Path. The error
// wraps storage.ErrExists for a checkpoint, and ErrOccupied for anything else. Check writes
// no files and needs no lock. If an earlier Publish was interrupted, Check looks at the
// object that will be at Path after Prepare has undone it.
func (p *Place) Check() error {
	path := p.Path
	if !exists(path) && exists(p.aside()) {
		path = p.aside()
	} else if begun, err := p.moved(); len(begun) > 0 || err != nil {
		return err // Path becomes a folder without a checkpoint again
	}
	_, _, err := p.examine(path)
	return err
}

// check undoes an interrupted Publish, and examines Path.
func (p *Place) check() (occupant, []string, error) {
	if err := p.undo(); err != nil {
		return nothing, nil, err
	}
	return p.examine(p.Path)
}

// examine returns the kind of the object at path, and the files of the checkpoint there. It
// returns an error if the new checkpoint must not replace it.
func (p *Place) examine(path string) (occupant, []string, error) {
	refuse := func(why string, args ...any) (occupant, []string, error) {
		return nothing, nil, fmt.Errorf("%w: %s %s", ErrOccupied, p.Path, fmt.Sprintf(why, args...))
	}
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && exists(path): // a symbolic link without a target
		return refuse("is a file that is not a checkpoint")
	case errors.Is(err, fs.ErrNotExist):
		return nothing, nil, nil
	case err != nil:
		return nothing, nil, err
	case !fi.IsDir() && !fi.Mode().IsRegular(): // to open it may block
		return refuse("is %s, which no checkpoint can replace", special(fi.Mode()))
	case fi.IsDir() && p.File != "":
		return refuse("is a folder")
	}

	if fi.IsDir() {
		if entries, err := os.ReadDir(path); err != nil || len(entries) == 0 {
			return nothing, nil, err
		}
	}

	var files []string
	if err = storage.ErrNotFound; p.Look != nil {
		files, err = p.Look(path)
	}

	none := errors.Is(err, storage.ErrNotFound)
	switch {
	case none && fi.IsDir():
		return otherFolder, nil, nil
	case none:
		return refuse("is a file that is not a checkpoint")
	case err != nil && fi.IsDir():
		return refuse("holds a checkpoint that cannot be opened, so it is unknown which files belong to it: %v", err)
	case err != nil:
		return refuse("is not a checkpoint that can be opened, and is not replaced: %v", err)
	case !p.Overwrite:
		return nothing, nil, fmt.Errorf("%w: %s", storage.ErrExists, p.Path)
	case fi.IsDir():
		return checkpointFolder, files, nil
	}

	return checkpointFile, nil, nil
}

// special names the kind of an object that is neither a file nor a folder.
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

// Prepare is like Check, but undoes an interrupted Publish, and removes a staging directory
// without the record of a conversion, such as the rest of a checkpoint that was replaced. Run
// continues or removes other staging directories.
func (p *Place) Prepare() error { return p.locked(p.prepare) }

func (p *Place) prepare() error {
	old, files, err := p.check()
	if err != nil {
		return err
	}

	base := p.stamp(old, files)
	p.base = &base
	_, err = os.Stat(filepath.Join(p.Staging(), filepath.FromSlash(recordName)))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(p.Staging())
	}
	return err
}

// stamp identifies the checkpoint at Path, by the names, sizes and times of its files. A save
// to a checkpoint that is there changes it.
func (p *Place) stamp(old occupant, files []string) string {
	paths := []string{p.Path}
	if old != checkpointFolder && old != checkpointFile {
		return fmt.Sprint(old)
	}
	if old == checkpointFolder {
		paths = paths[:0]
		for _, n := range files {
			paths = append(paths, p.inPath(n))
		}
	}

	var b strings.Builder
	for _, path := range paths {
		if fi, err := os.Stat(path); err == nil {
			fmt.Fprintln(&b, path, fi.Size(), fi.ModTime().UnixNano())
		}
	}

	return b.String()
}

// Discard removes the staging directory if it has no finished files.
func (p *Place) Discard() error { return p.locked(p.discard) }

func (p *Place) discard() error {
	entries, err := os.ReadDir(filepath.Join(p.Staging(), filepath.FromSlash(resultsPrefix)))
	if len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(p.Staging())
}

// ErrBusy reports a place that another conversion has locked.
var ErrBusy = errors.New("another conversion to it is running")

// Lock reserves the place and its staging directory for the caller, until Unlock or the
// end of the process. A conversion holds it from before Prepare until after Publish or
// Discard. Locking it twice is not an error.
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

// Unlock releases the lock, if it is held.
func (p *Place) Unlock() error {
	l := p.lock
	if l == nil {
		return nil
	}
	p.lock = nil
	return l.Release()
}

// lockPath returns the path of the file that is locked. It is not in the staging
// directory, because Publish renames or removes that directory.
func (p *Place) lockPath() string { return p.beside(lockEnding) }

// locked runs fn while it holds the lock. If the file system has no locks, it runs fn
// without a lock.
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

// Unfinished describes the files of a conversion that has not finished.
type Unfinished struct {
	// Path is the path of the checkpoint, and Staging the directory in which it is
	// made. Staging may not exist: the conversion may have left only its lock.
	Path, Staging string
	// Bytes is the size of all files.
	Bytes int64
	// ModTime is the time of the last change.
	ModTime time.Time
	// Owner is the state of the process of the conversion.
	Owner blob.Owner
	// SaveID is the id of its save if Path is not a path of the file system; see
	// UnfinishedIn. The names of its files contain it.
	SaveID string
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

// IsStaging reports whether name is the base name of a directory or a file that a
// conversion makes next to its target.
func IsStaging(name string) bool {
	_, ok := targetOf(name)
	return ok
}

// targetOf returns the base name of the target of a hidden name.
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
	// The owner is read first. If a conversion begins after that, Drop returns ErrBusy.
	if u.Owner, err = file.PathOwner(p.lockPath()); err != nil {
		return nil, err
	}

	found := false
	own := []string{p.Staging(), p.lockPath()}
	if exists(p.Path) { // otherwise undo moves the old checkpoint back to Path
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
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be removed meanwhile
			return nil, err
		}
	}

	if !found {
		return nil, nil
	}
	return u, nil
}

// Drop removes the files of a conversion to Path that has not finished, so that it cannot be
// continued. It first undoes an interrupted Publish. The error wraps ErrBusy if the
// conversion still runs.
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
