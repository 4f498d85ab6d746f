package commit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Leftover is a file that no checkpoint needs: of a save that did not finish, or
// of a checkpoint that was replaced or removed.
type Leftover struct {
	Name    string    `json:"name"`
	Size    int64     `json:"bytes"`
	ModTime time.Time `json:"time"`
	// Age is how long ago the file was written, by the clock of its store.
	Age time.Duration `json:"-"`
	// SaveID is the id of the save that wrote it, or "" if that is unknown.
	SaveID string `json:"save_id,omitempty"`
	// Owner is the state of the process that would remove the file or make it part of
	// a checkpoint.
	Owner blob.Owner `json:"-"`
	// Uncertain means that the commit of the save is uncertain: the record that names
	// the file may still appear.
	Uncertain bool `json:"uncertain,omitempty"`
	// Removed means that the file belongs to a checkpoint that was removed: the removal was
	// interrupted, or is under way.
	Removed bool `json:"removed_checkpoint,omitempty"`
}

// settled is the age after which a write of a record that got no answer has not taken
// place and does not any more. No service keeps a request for that long.
const settled = 24 * time.Hour

// Removable reports whether the file can be removed: its owner is dead, or its owner is
// unknown and the file is at least olderThan old. If olderThan is negative, only the
// files of dead owners can be removed. While the commit of its save is uncertain, it
// cannot be removed.
func (l *Leftover) Removable(olderThan time.Duration) bool {
	if l.Uncertain && l.Age < settled {
		return false
	}
	return l.Owner == blob.OwnerDead || l.Owner == blob.OwnerUnknown && olderThan >= 0 && l.Age >= olderThan
}

// Leftovers returns the files of the format at the root of store that the
// checkpoint there does not need, and the temporary files of writers. The result
// includes the files of saves that are under way; their owner is alive.
func Leftovers(ctx context.Context, store blob.Store, f *Format) ([]Leftover, error) {
	// The order of the three reads matters. A save holds its lock from before its
	// first file until its end. So if the files are listed first, and after that no
	// living process holds the lock of a file's save, that save has ended. If the
	// record, which is read last, does not name the file, no later record will.
	data, err := f.identified(ctx, store, f.Prefix)
	if err != nil {
		return nil, err
	}

	locks, err := saveLocks(ctx, store, f.Name)
	if err != nil {
		return nil, err
	}

	temps, tempErr := tempsAt(ctx, store)
	if len(data) == 0 {
		return temps, tempErr
	}

	named, err := f.current(ctx, store)
	if err != nil {
		return temps, errors.Join(err, tempErr)
	}

	var out []Leftover
	for _, l := range data {
		if !named[l.Name] {
			l.own(locks)
			l.Age = blob.Age(store, l.ModTime)
			out = append(out, l)
		}
	}

	if len(out) > 0 && f.Needed != nil {
		needed, err := f.Needed(ctx, store)
		if errors.Is(err, storage.ErrVersion) {
			return temps, tempErr // a checkpoint of a later version may refer to any of them
		}
		if err != nil {
			return temps, errors.Join(err, tempErr)
		}
		out = slices.DeleteFunc(out, func(l Leftover) bool { return needed[l.Name] })
	}

	return append(out, temps...), tempErr
}

// tempsAt returns the temporary files of writers at the root of a store.
func tempsAt(ctx context.Context, store blob.Store) ([]Leftover, error) {
	s, ok := blob.As[blob.Sweeper](store)
	if !ok {
		return nil, nil
	}

	temps, err := s.Temps(ctx, "")
	out := make([]Leftover, len(temps))
	for i, t := range temps {
		out[i] = Leftover{Name: t.Name, Size: t.Size, ModTime: t.ModTime, Age: blob.Age(store, t.ModTime), Owner: t.Owner}
	}

	return out, err
}

// foundLock is a lock that was found in a store.
type foundLock struct {
	saveID string
	note   note
	// uncertain means that the record of the save may still appear.
	uncertain bool
	blob.Lock
}

// advice tells the user how to settle a save with an unknown result.
func (l *foundLock) advice() string {
	return fmt.Sprintf("save %s got no answer when it wrote %s at %s, and the service may still write it: "+
		"save here again, which settles it, or wait a day; until then nothing of that save is removed",
		l.saveID, l.note.Record, l.ModTime.UTC().Format(time.RFC3339))
}

// settle finds out whether the record of an uncertain save can still appear. If not, its
// owner is dead.
func (l *foundLock) settle(ctx context.Context, store blob.Store) error {
	if l.note.Record == "" {
		return nil
	}

	info, err := store.Stat(ctx, l.note.Record)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	switch {
	case info.Version != l.note.Base:
		l.Owner = blob.OwnerDead
	default:
		l.Owner, l.uncertain = blob.OwnerUnknown, blob.Age(store, l.ModTime) < settled
	}

	return nil
}

// saveLocks returns the locks of saves in a format and of pending saves. If format
// is empty, it returns the locks of saves in all formats.
func saveLocks(ctx context.Context, store blob.Store, format string) ([]foundLock, error) {
	all, err := locksOf(ctx, store)
	if err != nil {
		return nil, err
	}
	return savesOf(ctx, store, all, format)
}

// savesOf returns the locks among all that saveLocks returns.
func savesOf(ctx context.Context, store blob.Store, all []foundLock, format string) ([]foundLock, error) {
	var out []foundLock
	for _, f := range all {
		of, id, ok := strings.Cut(strings.TrimPrefix(f.Name, savePrefix), "-")
		if !ok || !strings.HasPrefix(f.Name, savePrefix) || format != "" && of != format && of != pending {
			continue
		}
		f.saveID = id
		if err := f.settle(ctx, store); err != nil {
			return nil, err
		}
		out = append(out, f)
	}

	return out, nil
}

// locksOf returns all locks at the root of a store, with their notes.
func locksOf(ctx context.Context, store blob.Store) ([]foundLock, error) {
	locker, ok := blob.As[blob.Locker](store)
	if !ok {
		return nil, nil
	}

	locks, err := locker.Locks(ctx, "")
	if err != nil {
		return nil, err
	}

	out := make([]foundLock, len(locks))
	for i, l := range locks {
		out[i].Lock = l
		_ = json.Unmarshal(l.Note, &out[i].note) // without a valid note, no replaced files are known
	}

	return out, nil
}

// readLocks returns the locks of readers.
func readLocks(ctx context.Context, store blob.Store) ([]foundLock, error) {
	all, err := locksOf(ctx, store)
	return slices.DeleteFunc(all, func(l foundLock) bool { return !strings.HasPrefix(l.Name, readPrefix) }), err
}

// own sets the owner of a data file from the locks of its save and of saves that
// replace it: the owner is alive if a living process holds one of them, dead if dead
// processes have left all of them, and otherwise unknown.
func (l *Leftover) own(locks []foundLock) {
	var seen [3]bool
	for i := range locks {
		f := &locks[i]
		if l.SaveID != "" && f.saveID == l.SaveID || slices.Contains(f.note.Replaced, l.Name) {
			seen[f.Owner] = true
			l.Uncertain = l.Uncertain || f.uncertain
		}
	}

	switch {
	case seen[blob.OwnerAlive]:
		l.Owner = blob.OwnerAlive
	case seen[blob.OwnerDead] && !seen[blob.OwnerUnknown]:
		l.Owner = blob.OwnerDead
	}
}

// Sweep removes the leftovers for which Leftover.Removable is true. It returns those
// that it removed, even if it returns an error. If olderThan is negative, it keeps
// leftovers of unknown owners. If keep is not nil, Sweep also keeps the leftovers for
// which keep returns true, apart from temporary files.
func Sweep(ctx context.Context, store blob.Store, f *Format, olderThan time.Duration, keep func(*Leftover) bool) ([]Leftover, error) {
	if olderThan < 0 {
		if dead, err := anyDead(ctx, store, f.Name); !dead || err != nil {
			return nil, err
		}
	}

	var out []Leftover
	err := Locked(ctx, store, func() error {
		// A process may die while this function runs. Its lock goes only if it was dead
		// before the files were listed: otherwise files of it may be left, and without the
		// lock no process could tell that they belong to a dead process.
		locks, err := saveLocks(ctx, store, f.Name)
		if err != nil {
			return err
		}

		left, err := Leftovers(ctx, store, f)
		if err != nil {
			return err
		}

		kept := false
		var errs []error
		for _, l := range left {
			if !l.Removable(olderThan) || isTemp(l.Name) {
				continue
			}
			if keep != nil && keep(&l) {
				kept = kept || l.Owner == blob.OwnerDead // keep the lock too: it shows that the owner is dead
			} else if err := store.Remove(ctx, l.Name); err != nil {
				errs = append(errs, err)
			} else {
				out = append(out, l)
			}
		}

		temps, err := sweepTemps(ctx, store, left, olderThan)
		out = append(out, temps...)
		if errs = append(errs, err); !kept && errors.Join(errs...) == nil {
			errs = append(errs, sweepLocks(ctx, store, locks, olderThan))
		}
		readers, err := readLocks(ctx, store)
		return errors.Join(append(errs, err, sweepLocks(ctx, store, readers, olderThan))...)
	})
	return out, err
}

// anyDead reports whether a dead process has left a lock or a temporary file. It costs
// less than listing all files.
func anyDead(ctx context.Context, store blob.Store, format string) (bool, error) {
	isDead := func(l foundLock) bool { return l.Owner == blob.OwnerDead }
	locks, err := saveLocks(ctx, store, format)
	if err != nil || slices.ContainsFunc(locks, isDead) {
		return err == nil, err
	}

	if locks, err = readLocks(ctx, store); err != nil || slices.ContainsFunc(locks, isDead) {
		return err == nil, err
	}

	temps, err := tempsAt(ctx, store)
	return slices.ContainsFunc(temps, func(l Leftover) bool { return l.Owner == blob.OwnerDead }), err
}

func isTemp(name string) bool { return strings.HasPrefix(name, blob.Reserved) }

// sweepTemps removes the temporary files of dead writers, and files of unknown writers
// that are older than olderThan. It returns the elements of left that it removed.
func sweepTemps(ctx context.Context, store blob.Store, left []Leftover, olderThan time.Duration) ([]Leftover, error) {
	s, ok := blob.As[blob.Sweeper](store)
	if !ok {
		return nil, nil
	}

	// It is unknown to which save a temporary file belongs, so files of unknown owners stay
	// while a save is under way.
	locks, err := saveLocks(ctx, store, "")
	if err != nil {
		return nil, err
	}

	if olderThan < 0 || slices.ContainsFunc(locks, func(l foundLock) bool { return l.Owner == blob.OwnerAlive }) {
		olderThan = 100 * 365 * 24 * time.Hour
	}

	_, err = s.SweepTemp(ctx, "", olderThan)
	now, tempErr := s.Temps(ctx, "")
	left = slices.DeleteFunc(slices.Clone(left), func(l Leftover) bool {
		return !isTemp(l.Name) || slices.ContainsFunc(now, func(t blob.Temp) bool { return t.Name == l.Name })
	})
	return left, errors.Join(err, tempErr)
}

// sweepLocks removes the locks of saves and readers that have ended. The caller has removed
// the files of these saves.
func sweepLocks(ctx context.Context, store blob.Store, locks []foundLock, olderThan time.Duration) error {
	if len(locks) == 0 {
		return nil
	}

	locker, _ := blob.As[blob.Locker](store) // it has locks
	var errs []error
	for _, f := range locks {
		if l := (Leftover{Owner: f.Owner, Age: blob.Age(store, f.ModTime), Uncertain: f.uncertain}); !l.Removable(olderThan) {
			continue
		}

		taken, err := locker.TryLock(ctx, f.Name, nil)
		if err == nil {
			err = taken.Release()
		}
		if !errors.Is(err, blob.ErrLocked) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}
