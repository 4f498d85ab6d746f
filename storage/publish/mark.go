package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// The names of locks. Each save under way holds a lock whose name begins with
// markPrefix. placeLock is held while the record is replaced or files are removed.
const (
	markPrefix = "save-"
	placeLock  = "place"
)

// note is the content of a mark, as JSON.
type note struct {
	// Replaced are the files of the checkpoint that the save replaces. It
	// removes them after its commit.
	Replaced []string `json:"replaced,omitempty"`
}

// Mark is a lock that marks a save as under way, as long as its process is alive. The
// coordinator holds it from before the first write of any rank until the end of the
// save. A save cannot commit without its coordinator, so it ends if the coordinator
// dies. A nil Mark does nothing; stores without locks have nil Marks.
type Mark struct {
	lock blob.HeldLock
	note note
}

// NewMark marks a save in a format as under way. The error wraps blob.ErrLocked if
// another process holds the mark, because it writes or repairs the same save.
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

// Replaces writes the names of the files that the save removes after its commit into
// the mark. If this process dies after the commit, another process can remove them.
func (m *Mark) Replaces(files []string) error {
	if m == nil || len(files) == 0 {
		return nil
	}
	m.note.Replaced = files
	return m.lock.SetNote(m.encode())
}

// Release releases the lock of the mark.
func (m *Mark) Release() error {
	if m == nil || m.lock == nil {
		return nil
	}
	l := m.lock
	m.lock = nil
	return l.Release()
}

// CheckIdle returns an error that wraps blob.ErrLocked if a living process holds the
// mark of a save in a format.
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

// lockWait bounds how long Locked waits for the lock. Its holder removes files or writes
// a record, which takes less time unless the process is suspended.
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
