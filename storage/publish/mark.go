package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// The names of locks: one for each save under way, and one that is held while
// the record is replaced or files are removed.
const (
	markPrefix = "save-"
	placeLock  = "place"
)

// note is the text of a mark.
type note struct {
	// Replaced are the files of the checkpoint that the save replaces. It
	// removes them after its commit.
	Replaced []string `json:"replaced,omitempty"`
}

// Mark marks a save as under way, as long as its process lives. The coordinator
// holds it from before any rank writes until the save has ended. A save cannot
// commit without its coordinator, so it ends if the coordinator dies. A nil Mark, of
// a store without locks, does nothing.
type Mark struct {
	lock blob.HeldLock
	note note
}

// NewMark marks the save of that id, in a format, as under way. If the mark is held
// by another process, which saves or repairs that save, the error wraps
// blob.ErrLocked.
func NewMark(ctx context.Context, store blob.Store, format, saveID string) (*Mark, error) {
	l, ok := blob.As[blob.Locker](store)
	if !ok {
		return nil, nil
	}
	m := &Mark{}
	lock, err := l.TryLock(ctx, markName(format, saveID), m.encode())
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", saveID, err)
	}
	m.lock = lock
	return m, nil
}

func markName(format, saveID string) string { return markPrefix + format + "-" + saveID }

func (m *Mark) encode() []byte {
	b, _ := json.Marshal(m.note) // of strings: it cannot fail
	return b
}

// Replaces notes the files that the save removes after its commit, so that
// another process can remove them if this one dies in between.
func (m *Mark) Replaces(files []string) error {
	if m == nil || len(files) == 0 {
		return nil
	}
	m.note.Replaced = files
	return m.lock.SetNote(m.encode())
}

// Release ends the mark.
func (m *Mark) Release() error {
	if m == nil || m.lock == nil {
		return nil
	}
	l := m.lock
	m.lock = nil
	return l.Release()
}

// CheckIdle returns an error that wraps blob.ErrLocked if a save in a format is known
// to be under way.
func CheckIdle(ctx context.Context, store blob.Store, format string) error {
	marks, err := marksAt(ctx, store, format)
	if err != nil {
		return err
	}
	for _, m := range marks {
		if m.Owner == blob.OwnerAlive {
			return fmt.Errorf("%s: save %s is under way (process %d on %s): %w", store, m.saveID, m.PID, m.Host, blob.ErrLocked)
		}
	}
	return nil
}

// lockWait bounds how long Locked waits. The holder of the lock removes files or
// writes a record, which takes less time unless its process is stopped.
const lockWait = 10 * time.Second

// Locked runs fn while no other process of this host is inside of Locked for the
// same place. If the store has no locks, or a process holds the lock for too
// long, it runs fn without: fn must keep the checkpoint safe by itself.
func Locked(ctx context.Context, store blob.Store, fn func() error) error {
	if l, ok := blob.As[blob.Locker](store); ok {
		if lock := waitLock(ctx, l); lock != nil {
			defer lock.Release()
		}
	}
	return fn()
}

func waitLock(ctx context.Context, l blob.Locker) blob.HeldLock {
	for end, pause := time.Now().Add(lockWait), time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		lock, err := l.TryLock(ctx, placeLock, nil)
		if err == nil {
			return lock
		}
		if !errors.Is(err, blob.ErrLocked) || time.Now().After(end) || ctx.Err() != nil {
			return nil
		}
		time.Sleep(pause)
	}
}
