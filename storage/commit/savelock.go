package commit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// The names of locks. Each save under way holds a lock named savePrefix, the name of its
// format or pending, a dash, and the id of the save. Each reader holds a lock with a
// random name after readPrefix. A removal holds removeLock. storeLock is held while the record
// is replaced or files are removed.
const (
	savePrefix = "save-"
	pending    = "pending"
	readPrefix = "read-"
	removeLock = "remove"
	storeLock  = "place"
)

// note is the text of a SaveLock, as JSON.
type note struct {
	// Replaced are the files of the checkpoint that the save replaces. It
	// removes them after its commit.
	Replaced []string `json:"replaced,omitempty"`
	// Record is the name of the record if the fate of its write is unknown: a service has
	// not answered, and may still write it. Base is the version of the record that it
	// replaces, or empty if there was no record: any other version settles it.
	Record string `json:"record,omitempty"`
	Base   string `json:"base,omitempty"`
	// Removal describes the files of a removal.
	Removal *Removal `json:"removal,omitempty"`
}

const (
	// beatEvery is how often the lock of a save shows that the save is alive.
	beatEvery = blob.Lease / 6
	// LockAfter is how long after its beginning a save takes its lock in a service, where
	// a lock costs two requests. Most saves are over by then.
	LockAfter = 10 * time.Second
	// grace is the age under which a file in a service may belong to a save that has not
	// taken its lock yet.
	grace = time.Minute
)

// SaveLock is a lock that shows other processes that a save is under way, as long as its
// process is alive. The coordinator holds it from before the first write of any rank until
// the end of the save; in a service, it takes the lock after LockAfter. A save cannot commit
// without its coordinator, so it ends if the coordinator dies. Stores without locks have nil
// SaveLocks, and a nil SaveLock has no effect.
type SaveLock struct {
	take   func(ctx context.Context, note []byte) (blob.HeldLock, error)
	ctx    context.Context // of take and of beats, until the end
	cancel context.CancelFunc
	timer  *time.Timer

	mu    sync.Mutex
	lock  blob.HeldLock // guarded by mu; nil: not taken
	note  note          // guarded by mu
	beat  time.Time     // guarded by mu; of the last beat
	ended bool          // guarded by mu
}

// LockSave takes the lock of a save in a format. The error wraps blob.ErrLocked if
// another process holds it, because it writes or repairs the same save.
func LockSave(ctx context.Context, store blob.Store, format, saveID string) (*SaveLock, error) {
	l, err := newLock(ctx, store, savePrefix+format+"-"+saveID, note{}, !isService(store))
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", saveID, err)
	}
	return l, nil
}

// newLock returns the lock of a name with a note. It takes the lock if now is set, and
// otherwise after LockAfter. If the store has no locks, it returns nil.
func newLock(ctx context.Context, store blob.Store, name string, n note, now bool) (*SaveLock, error) {
	locker, ok := blob.As[blob.Locker](store)
	if !ok {
		return nil, nil
	}

	l := &SaveLock{note: n, take: func(ctx context.Context, note []byte) (blob.HeldLock, error) {
		return locker.TryLock(ctx, name, note)
	}}
	first := LockAfter
	if now {
		first = beatEvery
		if err := l.write(ctx); errors.Is(err, errors.ErrUnsupported) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		l.beat = time.Now()
	}

	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.mu.Lock() // the timer may fire before it is kept
	defer l.mu.Unlock()

	l.timer = time.AfterFunc(first, l.tick)
	return l, nil
}

// Taken reports whether other processes can see the lock now. In a service, the lock is
// taken later.
func (l *SaveLock) Taken() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lock != nil
}

// HasLock reports whether the store has the lock of a save, which a process of any host may
// hold.
func HasLock(ctx context.Context, store blob.Store, format, saveID string) (bool, error) {
	locker, ok := blob.As[blob.Locker](store)
	if !ok {
		return false, nil
	}
	locks, err := locker.Locks(ctx, "")
	return slices.ContainsFunc(locks, func(l blob.Lock) bool { return l.Name == savePrefix+format+"-"+saveID }), err
}

// OwnerOf returns the state of the process that holds the lock of a save, in any format, and
// whether the commit of the save is uncertain. Without a lock, the state is unknown.
func OwnerOf(ctx context.Context, store blob.Store, saveID string) (owner blob.Owner, uncertain bool, err error) {
	locks, err := saveLocks(ctx, store, "")
	if err != nil {
		return blob.OwnerUnknown, false, err
	}
	l := Leftover{SaveID: saveID}
	l.own(locks)
	return l.Owner, l.Uncertain, nil
}

// LeastAge returns the least age of leftovers of unknown owners in a store that are
// certainly not files of a save that has just begun.
func LeastAge(store blob.Store) time.Duration {
	if isService(store) {
		return grace
	}
	return 0
}

// isService reports whether the requests of a store are expensive.
func isService(store blob.Store) bool {
	_, expensive := blob.As[blob.GapReader](store)
	return expensive
}

// LockPending takes the lock of a save that will begin later. It shows other processes
// that there is such a save, and does not replace the lock that LockSave takes.
func LockPending(ctx context.Context, store blob.Store, saveID string) (*SaveLock, error) {
	if err := checkSaveID(saveID); err != nil {
		return nil, err
	}
	return LockSave(ctx, store, pending, saveID)
}

// tick takes the lock if it is not taken yet, and beats otherwise. If that fails, the
// next tick tries again.
func (l *SaveLock) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	_ = l.renew(l.ctx)
	if !l.ended {
		l.timer.Reset(beatEvery)
	}
}

// renew takes the lock or beats. The caller holds mu.
func (l *SaveLock) renew(ctx context.Context) error {
	var err error
	if l.lock != nil {
		err = l.lock.Beat(ctx)
	} else {
		err = l.write(ctx)
	}
	if err == nil {
		l.beat = time.Now()
	}
	return err
}

// write writes the note into the lock, and takes the lock if it is not taken yet. The
// caller holds mu.
func (l *SaveLock) write(ctx context.Context) error {
	b, err := json.Marshal(l.note)
	if err != nil {
		return err
	}
	if l.lock != nil {
		return l.lock.SetNote(b)
	}
	l.lock, err = l.take(ctx, b)
	return err
}

// Confirm makes sure that other processes still see the lock. If this process was
// suspended, they may have removed the files of the save: the caller looks for them after
// Confirm. The error wraps blob.ErrLocked if another process has taken the lock.
func (l *SaveLock) Confirm(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lock == nil || time.Since(l.beat) < blob.Lease/2 {
		return nil
	}
	return l.renew(ctx)
}

// Replaces writes the names of the files that the save removes after its commit into
// the lock. If this process dies after the commit, another process can remove them.
func (l *SaveLock) Replaces(files []string) error {
	if l == nil || len(files) == 0 {
		return nil
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.note.Replaced = files
	if l.lock == nil {
		return nil
	}
	return l.write(l.ctx)
}

// LeaveUncertain writes into the lock that the fate of the record's write is unknown, and
// leaves the lock there: until the record has another version than base, no other process
// removes the files of the save.
func (l *SaveLock) LeaveUncertain(ctx context.Context, record, base string) error {
	if l == nil {
		return nil
	}

	lock := l.end()
	l.mu.Lock()
	defer l.mu.Unlock()

	l.lock, l.note.Record, l.note.Base = lock, record, base
	err := l.write(ctx)
	l.lock = nil // Release does not remove it
	return err
}

// leave ends the beats and leaves the lock in the store, for another process to find.
func (l *SaveLock) leave() error {
	if l == nil {
		return nil
	}
	if lock := l.end(); lock != nil {
		return lock.Leave()
	}
	return nil
}

// Release releases the lock, if it is held.
func (l *SaveLock) Release() error {
	if l == nil {
		return nil
	}
	if lock := l.end(); lock != nil {
		return lock.Release()
	}
	return nil
}

// end ends the beats. It returns the lock, or nil if it is not held.
func (l *SaveLock) end() blob.HeldLock {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	lock := l.lock
	l.lock, l.ended = nil, true
	return lock
}

// CheckIdle returns an error that wraps blob.ErrLocked if a living process holds the
// lock of a save in a format, and storage.ErrUncertain if the fate of a save is unknown.
func CheckIdle(ctx context.Context, store blob.Store, format string) error {
	locks, err := saveLocks(ctx, store, format)
	if err != nil {
		return err
	}

	for _, l := range locks {
		if l.uncertain {
			return fmt.Errorf("%s: %w: %s", store, storage.ErrUncertain, l.advice())
		}
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
	return underWay(store, locks)
}

// underWay returns the error of CheckUnderWay for the locks of saves.
func underWay(store blob.Store, saves []foundLock) error {
	for _, l := range saves {
		if l.Owner == blob.OwnerAlive {
			return fmt.Errorf("%w: process %d on %s saves %s to %s: wait until it has ended", storage.ErrUnderWay, l.PID, l.Host, l.saveID, store)
		}
	}
	return nil
}

// CheckUncertain returns an error that wraps storage.ErrUncertain if the fate of a save
// to the root of store is unknown: a service may still write its record.
func CheckUncertain(ctx context.Context, store blob.Store) error {
	locks, err := saveLocks(ctx, store, "")
	for _, l := range locks {
		if l.uncertain {
			return fmt.Errorf("%s: %w: %s", store, storage.ErrUncertain, l.advice())
		}
	}
	return err
}

// Explain returns a better error than err, the error of opening the checkpoint at the
// root of store, if there is no checkpoint and a save or a removal has left its lock there.
// If the save is under way, that error wraps storage.ErrUnderWay instead of err, and if its
// commit is uncertain, storage.ErrIncomplete and storage.ErrUncertain. After a removal, the
// error wraps storage.ErrNotFound: the files that are left are not damage.
func Explain(ctx context.Context, store blob.Store, err error) error {
	if _, single := blob.As[*blob.Single](store); single || !isAbsent(err) {
		return err // the locks in the folder of a single file are not about that file
	}

	all, lockErr := locksOf(ctx, store)
	if lockErr != nil {
		return err
	}

	locks, lockErr := savesOf(ctx, store, all, "")
	if under := underWay(store, locks); under != nil {
		return under
	}

	if removal := removalOf(all); removal != nil {
		return removal.explain(store)
	}

	uncertain := slices.IndexFunc(locks, func(l foundLock) bool { return l.uncertain })
	switch {
	case lockErr != nil || len(locks) == 0:
		return err
	case uncertain >= 0:
		return fmt.Errorf("%w: %w: %s", storage.ErrIncomplete, storage.ErrUncertain, locks[uncertain].advice())
	case slices.ContainsFunc(locks, func(l foundLock) bool { return l.Owner != blob.OwnerDead }):
		return fmt.Errorf("%w; a save has left its lock here, and it is unknown whether it is over: 'cairn clean --older-than' removes its files by age", err)
	}

	return fmt.Errorf("%w; a save did not finish here, and its process has ended: 'cairn clean' removes its files", err)
}

// lockWait bounds how long Locked waits for the lock. A process that holds the lock
// removes files or writes a record, which takes less time unless it is suspended.
const lockWait = 10 * time.Second

// Locked runs fn while it holds a lock of the store, so that other processes of this host do not
// run their fn at the same time. If the store has no locks or is a service, which has conditions
// for records instead, or if another process holds the lock for longer than lockWait, Locked runs
// fn without the lock. So fn must not damage the checkpoint even if it runs concurrently.
func Locked(ctx context.Context, store blob.Store, fn func() error) error {
	if l, ok := blob.As[blob.Locker](store); ok && !isService(store) {
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
