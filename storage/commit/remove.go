package commit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// RemoveOptions change how a checkpoint is removed. Nil means the defaults.
type RemoveOptions struct {
	// SaveID is the id of the save that is removed. If the place holds another one, the error
	// wraps storage.ErrChanged, and no file is removed. Empty: any.
	SaveID string
	// Check, if not nil, is called when the removal has its lock and has found no reader, right
	// before the first file is removed. If it returns an error, no file is removed.
	Check func(ctx context.Context) error
}

// Removed counts the files and bytes that a removal has removed.
type Removed struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Add adds other to r.
func (r *Removed) Add(other Removed) {
	r.Files += other.Files
	r.Bytes += other.Bytes
}

// Removal describes the files of a checkpoint that is removed.
type Removal struct {
	Format string `json:"format"`
	SaveID string `json:"save_id,omitempty"`
	// Files are the files of the checkpoint with their sizes and versions. The first one is
	// removed first. If HasRecord is set, its removal makes the rest no checkpoint, in one
	// atomic step. Otherwise Begun is that step: while it is set in the lock of the removal,
	// readers do not take the remaining files for a checkpoint; see IsRemoved.
	Files     []RemovedFile `json:"files"`
	HasRecord bool          `json:"has_record,omitempty"`
	Begun     bool          `json:"begun,omitempty"`
}

// RemovedFile is a file of a checkpoint that is removed, as it was when the removal began.
type RemovedFile struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Version string `json:"version,omitempty"`
}

// matches reports whether info describes the same file.
func (f *RemovedFile) matches(info blob.Info) bool {
	return f.Name == info.Name && f.Size == info.Size && f.Version == info.Version
}

// maxNoted bounds the bytes of the list in the lock of a removal, so that the lock can be read:
// about 40,000 files. If a removal of more files is interrupted, the other files are leftovers
// of an unknown save.
const maxNoted = 5 << 20

// Remove removes the checkpoint at the root of store that find describes:
//
//  1. It takes the lock of removals, which lists the files.
//  2. It looks for the locks of readers and of saves that are under way.
//  3. It calls RemoveOptions.Check.
//  4. It removes the record, on the condition that it is the one that find has seen. From
//     now on there is no checkpoint.
//  5. It removes the other files, unless they have changed meanwhile, the lock, and the
//     folder if it is empty.
//
// If the process dies before step 4, the checkpoint is complete. If it dies later,
// FinishRemovals removes the other files, and so does the next save. current returns the
// files of the checkpoint that is in the store, which an earlier removal, which was
// interrupted, must not remove.
//
// The error wraps storage.ErrRemoving if another process is removing it, storage.ErrInUse if
// a living process reads it, storage.ErrUnderWay if a living process saves there, and
// storage.ErrChanged if a save has replaced the checkpoint. In all these cases, and if find
// or Check return an error, no file was removed.
func Remove(ctx context.Context, store blob.Store, find func(context.Context) (*Removal, error), current func(context.Context) (map[string]bool, error), opts *RemoveOptions) (Removed, error) {
	var o RemoveOptions
	if opts != nil {
		o = *opts
	}

	if _, err := FinishRemovals(ctx, store, current); err != nil {
		return Removed{}, err
	}

	r, err := find(ctx)
	if err != nil {
		return Removed{}, err
	}
	if o.SaveID != "" && r.SaveID != o.SaveID {
		return Removed{}, fmt.Errorf("%w: %s holds save %q and not %q", storage.ErrChanged, store, r.SaveID, o.SaveID)
	}

	lock, err := newLock(ctx, store, removeLock, note{Removal: r.noted()}, true)
	if errors.Is(err, blob.ErrLocked) {
		return Removed{}, fmt.Errorf("%w by another process: %w", storage.ErrRemoving, err)
	}
	if err != nil {
		return Removed{}, err
	}

	begun, err := r.begin(ctx, store, lock, &o)
	if !begun {
		return Removed{}, errors.Join(err, lock.Release())
	}

	removed := Removed{}
	if err == nil {
		removed = Removed{1, r.Files[0].Size}
		var rest []Leftover
		rest, err = r.removeRest(context.WithoutCancel(ctx), store, nil)
		for _, l := range rest {
			removed.Add(Removed{1, l.Size})
		}
	}
	if err != nil {
		return removed, errors.Join(err, lock.leave())
	}
	return removed, errors.Join(lock.Release(), tidy(ctx, store))
}

// noted returns r as the lock records it.
func (r *Removal) noted() *Removal {
	out := *r
	left := maxNoted
	out.Files = slices.Clone(r.Files)
	for i := range out.Files {
		const around = len(`{"name":"","size":9223372036854775807,"version":""},`)
		if left -= len(out.Files[i].Name) + len(out.Files[i].Version) + around; left < 0 && i > 0 {
			out.Files = out.Files[:i]
			break
		}
	}

	return &out
}

// begin removes the record. begun means that it is gone, or that this is unknown and err is
// the reason.
func (r *Removal) begin(ctx context.Context, store blob.Store, lock *SaveLock, o *RemoveOptions) (begun bool, err error) {
	record := r.Files[0]
	switch info, err := store.Stat(ctx, record.Name); {
	case errors.Is(err, fs.ErrNotExist): // another process has removed it before this one had the lock
		return false, fmt.Errorf("%w: %w", storage.ErrNotFound, err)
	case err != nil:
		return false, err
	case !record.matches(info):
		return false, fmt.Errorf("%w: %s of %s", storage.ErrChanged, record.Name, store)
	}

	locks, err := locksOf(ctx, store)
	if err == nil {
		err = checkReaders(ctx, store, locks)
	}
	if err == nil && o.Check != nil {
		err = o.Check(ctx)
	}
	if err == nil {
		err = lock.Confirm(ctx)
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return false, err
	}

	if !r.HasRecord {
		if err := lock.setBegun(); err != nil {
			return false, err
		}
	}
	return r.removeRecord(ctx, store, record)
}

// removeRecord removes the record. In a service, a request that got no answer may still be
// carried out. begun is then true, so that the lock stays: it lists the files to remove if
// the record is gone later.
func (r *Removal) removeRecord(ctx context.Context, store blob.Store, record RemovedFile) (begun bool, err error) {
	removing, end := outlive(ctx, recordTime)
	defer end()

	if record.Version == "" {
		err = store.Remove(removing, record.Name)
	} else {
		err = blob.RemoveVersion(removing, store, record.Name, record.Version)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, blob.ErrChanged):
		return false, fmt.Errorf("%w: %w", storage.ErrChanged, err)
	}

	if _, statErr := store.Stat(context.WithoutCancel(ctx), record.Name); errors.Is(statErr, fs.ErrNotExist) {
		return true, nil
	} else if statErr == nil && !isService(store) && r.HasRecord {
		return false, err
	}
	return true, err
}

// setBegun writes into the lock that the removal has begun.
func (l *SaveLock) setBegun() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := *l.note.Removal
	r.Begun = true
	l.note.Removal = &r
	return l.write(l.ctx)
}

// removeRest removes the files of r that are as they were, apart from the ones in kept, and
// returns them.
func (r *Removal) removeRest(ctx context.Context, store blob.Store, kept map[string]bool) ([]Leftover, error) {
	left, err := r.left(ctx, store)
	if err != nil {
		return nil, err
	}

	left = slices.DeleteFunc(left, func(l Leftover) bool { return kept[l.Name] })
	if len(left) == 0 {
		return nil, nil
	}
	if isService(store) {
		names := make([]string, len(left))
		for i, l := range left {
			names[i] = l.Name
		}
		if err := blob.RemoveAll(ctx, store, names); err != nil {
			return nil, err // it is unknown which ones are gone
		}
		return left, nil
	}

	var out []Leftover
	var errs []error
	for _, l := range left {
		if info, err := store.Stat(ctx, l.Name); err != nil || info.Size != l.Size || !info.ModTime.Equal(l.ModTime) {
			continue // another process has removed or replaced it since it was listed
		}
		if err := store.Remove(ctx, l.Name); err != nil {
			errs = append(errs, err)
		} else {
			out = append(out, l)
		}
	}

	return out, errors.Join(errs...)
}

// left returns the files of r that are still there, in the order of Files.
func (r *Removal) left(ctx context.Context, store blob.Store) ([]Leftover, error) {
	have := map[string]blob.Info{}
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		have[info.Name] = info
	}

	var out []Leftover
	for _, f := range r.Files {
		if info, ok := have[f.Name]; ok && f.matches(info) {
			out = append(out, Leftover{Name: f.Name, Size: f.Size, ModTime: info.ModTime, Age: blob.Age(store, info.ModTime), SaveID: r.SaveID, Removed: true})
		}
	}

	return out, nil
}

// tidy removes the locks of dead readers, and the folder if it is empty. In a service, no
// reader is known to be dead.
func tidy(ctx context.Context, store blob.Store) error {
	if isService(store) {
		return nil
	}
	readers, err := readLocks(ctx, store)
	err = errors.Join(err, sweepLocks(ctx, store, readers, -1))
	removeFolder(ctx, store)
	return err
}

// removeFolder removes the folder of the store if it is empty. A reader calls it too, because
// its lock may be the last file of a checkpoint that was removed meanwhile.
func removeFolder(ctx context.Context, store blob.Store) {
	if f, ok := blob.As[blob.FolderRemover](store); ok {
		_ = f.RemoveFolder(ctx, "") // an empty folder does no harm
	}
}

// removalAt returns the lock of a removal at the root of store, or nil.
func removalAt(ctx context.Context, store blob.Store) (*foundLock, error) {
	locks, err := locksOf(ctx, store)
	return removalOf(locks), err
}

// removalOf returns the lock of a removal among locks, or nil.
func removalOf(locks []foundLock) *foundLock {
	i := slices.IndexFunc(locks, func(l foundLock) bool { return l.Name == removeLock })
	if i < 0 {
		return nil
	}
	l := &locks[i]
	if l.note.Removal == nil || len(l.note.Removal.Files) == 0 { // not a valid note
		l.note.Removal = &Removal{Files: []RemovedFile{{}}}
	}
	return l
}

// explain returns the error for a place without a checkpoint and with the lock of a
// removal.
func (l *foundLock) explain(store blob.Store) error {
	if l.Owner == blob.OwnerAlive {
		return fmt.Errorf("%w: process %d on %s is removing it from %s", storage.ErrNotFound, l.PID, l.Host, store)
	}
	return fmt.Errorf("%w: it was removed from %s, and the removal was interrupted: 'cairn clean' removes the files that are left", storage.ErrNotFound, store)
}

// begun reports whether the removal of a lock has removed the record, or has said in the
// lock that it has begun.
func (l *foundLock) begun(ctx context.Context, store blob.Store) (bool, error) {
	r := l.note.Removal
	if r.Begun {
		return true, nil
	}
	if r.Files[0].Name == "" {
		return false, nil
	}

	info, err := store.Stat(ctx, r.Files[0].Name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return !r.Files[0].matches(info), nil
}

// IsRemoved reports whether files are leftovers at the root of store of a removal that was
// interrupted or is under way. Package formats calls it for checkpoints without a record:
// leftovers may look like a smaller checkpoint.
func IsRemoved(ctx context.Context, store blob.Store, files []string) (bool, error) {
	l, err := removalAt(ctx, store)
	if err != nil || l == nil {
		return false, err
	}

	if begun, err := l.begun(ctx, store); !begun || err != nil {
		return false, err
	}

	removed := map[string]RemovedFile{}
	for _, f := range l.note.Removal.Files {
		removed[f.Name] = f
	}

	for _, name := range files {
		f, ok := removed[name]
		if !ok {
			return false, nil
		}
		info, err := store.Stat(ctx, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil && !f.matches(info) {
			return false, err
		}
	}

	return true, nil
}

// FinishRemovals finishes a removal after its process died: it removes the files if the
// record was gone, and otherwise only the lock. current returns the names of the files of the
// checkpoint that is at the root of store now, which stay. FinishRemovals returns the files
// that it has removed, even if it returns an error.
func FinishRemovals(ctx context.Context, store blob.Store, current func(context.Context) (map[string]bool, error)) ([]Leftover, error) {
	found, err := removalAt(ctx, store)
	if err != nil || found == nil || found.Owner == blob.OwnerAlive {
		return nil, err
	}

	lock, err := newLock(ctx, store, removeLock, found.note, true)
	if lock == nil || err != nil {
		if errors.Is(err, blob.ErrLocked) {
			err = nil // another process finishes it
		}
		return nil, err
	}

	out, err := finish(ctx, store, found, current)
	if err != nil {
		return out, errors.Join(err, lock.leave())
	}
	return out, errors.Join(lock.Release(), tidy(ctx, store))
}

func finish(ctx context.Context, store blob.Store, found *foundLock, current func(context.Context) (map[string]bool, error)) ([]Leftover, error) {
	begun, err := found.begun(ctx, store)
	if !begun || err != nil {
		return nil, err
	}
	kept, err := current(ctx)
	if err != nil {
		return nil, err
	}
	return found.note.Removal.removeRest(ctx, store, kept)
}

// RemovalLeftovers returns the files of a removal that was interrupted or is under way,
// after its record was removed.
func RemovalLeftovers(ctx context.Context, store blob.Store) ([]Leftover, error) {
	found, err := removalAt(ctx, store)
	if err != nil || found == nil {
		return nil, err
	}

	if begun, err := found.begun(ctx, store); !begun || err != nil {
		return nil, err
	}

	out, err := found.note.Removal.left(ctx, store)
	for i := range out {
		out[i].Owner = blob.OwnerDead // FinishRemovals takes over a lock with a dead holder
		if found.Owner == blob.OwnerAlive {
			out[i].Owner = blob.OwnerAlive
		}
	}

	return out, err
}

// CheckNoRemoval returns an error that wraps storage.ErrRemoving if a removal is under way at
// the root of store, or was interrupted. If the files of a writer may have the names of files
// of the removed checkpoint, the writer calls it after it has looked for the record that it
// replaces, and before it looks for its files for the last time and writes its own record:
// otherwise the removal could remove a file that the writer has found there.
func CheckNoRemoval(ctx context.Context, store blob.Store) error {
	l, err := removalAt(ctx, store)
	if err != nil || l == nil {
		return err
	}
	return fmt.Errorf("%w: %s by process %d on %s: try again", storage.ErrRemoving, store, l.PID, l.Host)
}
