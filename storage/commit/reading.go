package commit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Reading shows other processes that this one reads the checkpoint at the root of store,
// until release: a removal then returns storage.ErrInUse. The lock of a process that dies
// does not count. There may be several readers at the same time.
//
// In a folder, Reading takes its lock at once, and waits if a removal is under way. In a
// service, where a lock costs requests, it takes the lock after LockAfter; a removal that
// begins before does not see the reader, and the reader finds that files are gone. If store
// has no locks, or this process cannot write to it, release has no effect. The error wraps
// storage.ErrRemoving if a removal does not end, and the cause of ctx if it ends.
func Reading(ctx context.Context, store blob.Store) (release func(), err error) {
	return reading(ctx, store, !isService(store), true)
}

// ReadingNow is Reading for a process that keeps referring to the checkpoint, such as a
// save that is based on it. It takes the lock at once in a service too. If a removal is
// under way, or has begun and was interrupted, the error wraps storage.ErrRemoving, and
// ReadingNow does not wait.
func ReadingNow(ctx context.Context, store blob.Store) (release func(), err error) {
	return reading(ctx, store, true, false)
}

// Referring reports whether a living process holds the lock of ReadingNow at the root of
// store: a record that refers to files there may appear. Who calls ReadingNow and then looks
// for the files, and who asks and then removes files, does so in Locked.
func Referring(ctx context.Context, store blob.Store) (bool, error) {
	locks, err := locksOf(ctx, store)
	return slices.ContainsFunc(locks, func(l foundLock) bool {
		return l.Owner == blob.OwnerAlive && strings.HasPrefix(l.Name, referPrefix)
	}), err
}

// referPrefix begins the names of the locks of ReadingNow.
const referPrefix = readPrefix + "refer-"

func reading(ctx context.Context, store blob.Store, now, wait bool) (release func(), err error) {
	_, locks := blob.As[blob.Locker](store)
	if !locks || now && !isService(store) && isEmpty(ctx, store) { // a lock would make the folder
		return func() {}, context.Cause(ctx)
	}

	prefix := readPrefix
	if !wait {
		prefix = referPrefix
	}

	l, err := newLock(ctx, store, prefix+rand.Text(), note{}, now)
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), l.Release())
	}

	if err != nil {
		l = nil // this process may not write here, or the disk is full: it can read
	}

	if now {
		if err := awaitRemoval(ctx, store, wait); err != nil {
			return nil, errors.Join(err, l.Release())
		}
	}

	return func() {
		_ = l.Release() // a remaining lock belongs to a dead process soon
		removeFolder(context.WithoutCancel(ctx), store)
	}, nil
}

// isEmpty reports whether a store certainly has no objects.
func isEmpty(ctx context.Context, store blob.Store) bool {
	for range store.List(ctx, "") {
		return false
	}
	return true
}

// awaitRemoval returns an error that wraps storage.ErrRemoving if a removal is under way, at
// once or after lockWait. It does not fail if the locks cannot be read: the checkpoint may
// be readable.
func awaitRemoval(ctx context.Context, store blob.Store, wait bool) error {
	end := time.Now().Add(lockWait)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		l, err := removalAt(ctx, store)
		switch {
		case err != nil || l == nil:
			return context.Cause(ctx)
		case l.Owner != blob.OwnerAlive && wait:
			return nil // opening the checkpoint shows whether it is gone
		case l.Owner != blob.OwnerAlive:
			if begun, err := l.begun(ctx, store); !begun || err != nil {
				return err
			}
			return fmt.Errorf("%w: %s, and the removal was interrupted", storage.ErrRemoving, store)
		case !wait || time.Now().After(end):
			return fmt.Errorf("%w: %s by process %d on %s", storage.ErrRemoving, store, l.PID, l.Host)
		}

		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// CheckUnused returns an error that wraps storage.ErrInUse if a living process reads the
// checkpoint at the root of store, and storage.ErrUnderWay if a living process saves there.
func CheckUnused(ctx context.Context, store blob.Store) error {
	locks, err := locksOf(ctx, store)
	if err != nil {
		return err
	}
	return checkReaders(ctx, store, locks)
}

// CheckUnread returns an error that wraps storage.ErrInUse if a living process reads the
// checkpoint at the root of store, or saves another one that refers to it.
func CheckUnread(ctx context.Context, store blob.Store) error {
	locks, err := locksOf(ctx, store)
	if err != nil {
		return err
	}
	return unread(store, locks)
}

// unread returns an error that wraps storage.ErrInUse if one of the locks is a reader's.
func unread(store blob.Store, locks []foundLock) error {
	for _, l := range locks {
		if l.Owner == blob.OwnerAlive && strings.HasPrefix(l.Name, readPrefix) {
			return fmt.Errorf("%w: process %d on %s reads %s", storage.ErrInUse, l.PID, l.Host, store)
		}
	}
	return nil
}

// checkReaders returns an error that wraps storage.ErrInUse if a living process reads the
// checkpoint, and storage.ErrUnderWay if a living process saves there.
func checkReaders(ctx context.Context, store blob.Store, locks []foundLock) error {
	if err := unread(store, locks); err != nil {
		return err
	}
	saves, err := savesOf(ctx, store, locks, "")
	if err != nil {
		return err
	}
	return underWay(store, saves)
}
