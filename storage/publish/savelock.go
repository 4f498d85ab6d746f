package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// The names of locks. Each save under way holds a lock whose name is savePrefix, the
// name of its format or pending, a dash, and the id of the save. storeLock is held while
// the record is replaced or files are removed.
const (
	savePrefix = "save-"
	pending    = "pending"
	storeLock  = "place"
)

// note is the text of a SaveLock, as JSON.
type note struct {
	// Replaced are the files of the checkpoint that the save replaces. It
	// removes them after its commit.
	Replaced []string `json:"replaced,omitempty"`
}

// SaveLock is a lock that shows other processes that a save is under way, as long as its
// process is alive. The coordinator holds it from before the first write of any rank
// until the end of the save. A save cannot commit without its coordinator, so it ends if
// the coordinator dies. A nil SaveLock does nothing; stores without locks have nil
// SaveLocks.
type SaveLock struct{ lock blob.HeldLock }

// LockSave takes the lock of a save in a format. The error wraps blob.ErrLocked if
// another process holds it, because it writes or repairs the same save.
func LockSave(ctx context.Context, store blob.Store, format, saveID string) (*SaveLock, error) {
	lock, err := lockNamed(ctx, store, savePrefix+format+"-"+saveID)
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", saveID, err)
	}
	return lock, nil
}

// LockPending takes the lock of a save that will begin later. It shows other processes
// that there is such a save, and does not replace the lock that LockSave takes.
func LockPending(ctx context.Context, store blob.Store, saveID string) (*SaveLock, error) {
	if err := checkSaveID(saveID); err != nil {
		return nil, err
	}
	return LockSave(ctx, store, pending, saveID)
}

// lockNamed takes a lock. It returns nil if the store has no locks.
func lockNamed(ctx context.Context, store blob.Store, name string) (*SaveLock, error) {
	l, ok := blob.As[blob.Locker](store)
	if !ok {
		return nil, nil
	}
	lock, err := l.TryLock(ctx, name, []byte("{}"))
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &SaveLock{lock}, nil
}

// Replaces writes the names of the files that the save removes after its commit into
// the lock. If this process dies after the commit, another process can remove them.
func (l *SaveLock) Replaces(files []string) error {
	if l == nil || len(files) == 0 {
		return nil
	}
	b, err := json.Marshal(note{files})
	if err != nil {
		return err
	}
	return l.lock.SetNote(b)
}

// Release releases the lock, if it is held.
func (l *SaveLock) Release() error {
	if l == nil || l.lock == nil {
		return nil
	}
	lock := l.lock
	l.lock = nil
	return lock.Release()
}

// CheckIdle returns an error that wraps blob.ErrLocked if a living process holds the
// lock of a save in a format.
func CheckIdle(ctx context.Context, store blob.Store, format string) error {
	locks, err := saveLocks(ctx, store, format)
	if err != nil {
		return err
	}
	for _, l := range locks {
		if l.Owner == blob.OwnerAlive {
			return fmt.Errorf("%s: save %s is under way (process %d on %s): %w", store, l.saveID, l.PID, l.Host, blob.ErrLocked)
		}
	}
	return nil
}

// CheckUnderWay returns an error that wraps storage.ErrUnderWay if a living process holds
// the lock of a save to the root of store, in any format. If a store has no locks, it
// returns nil.
func CheckUnderWay(ctx context.Context, store blob.Store) error {
	locks, err := saveLocks(ctx, store, "")
	if err != nil {
		return err
	}
	for _, l := range locks {
		if l.Owner == blob.OwnerAlive {
			return fmt.Errorf("%w: process %d on %s saves %s to %s: wait until it has ended", storage.ErrUnderWay, l.PID, l.Host, l.saveID, store)
		}
	}
	return nil
}

// Explain returns a better error than err, the error of opening the checkpoint at the
// root of store, if there is no checkpoint and a save has left its lock there. If the save
// is under way, that error wraps storage.ErrUnderWay instead of err.
func Explain(ctx context.Context, store blob.Store, err error) error {
	if _, single := blob.As[*blob.Single](store); single || !isAbsent(err) {
		return err // the locks in the folder of a single file are not about that file
	}
	if under := CheckUnderWay(ctx, store); errors.Is(under, storage.ErrUnderWay) {
		return under
	}
	locks, lockErr := saveLocks(ctx, store, "")
	switch {
	case lockErr != nil || len(locks) == 0:
		return err
	case slices.ContainsFunc(locks, func(l foundLock) bool { return l.Owner != blob.OwnerDead }):
		return fmt.Errorf("%w; a save has left its lock here, and it is unknown whether it is over: 'cairn clean --older-than' removes its files by age", err)
	}
	return fmt.Errorf("%w; a save did not finish here, and its process has ended: 'cairn clean' removes its files", err)
}

// lockWait bounds how long Locked waits for the lock. A process that holds the lock
// removes files or writes a record, which takes less time unless it is suspended.
const lockWait = 10 * time.Second

// Locked runs fn while it holds a lock of the store, so that other processes of this
// host do not run their fn at the same time. If the store has no locks, or another
// process holds the lock for longer than lockWait, Locked runs fn without the lock. So
// fn must not damage the checkpoint even if it runs concurrently.
func Locked(ctx context.Context, store blob.Store, fn func() error) error {
	if l, ok := blob.As[blob.Locker](store); ok {
		if lock := waitLock(ctx, l); lock != nil {
			defer lock.Release()
		}
	}
	return fn()
}

// waitLock returns the lock, or nil if it is not free within lockWait, if ctx ends, or
// if the store cannot lock.
func waitLock(ctx context.Context, l blob.Locker) blob.HeldLock {
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		lock, err := l.TryLock(ctx, storeLock, nil)
		if err == nil {
			return lock
		}
		if !errors.Is(err, blob.ErrLocked) {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-wait.Done():
			return nil
		}
	}
}
