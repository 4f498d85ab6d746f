package blob

import (
	"context"
	"time"
)

// Wrapper is implemented by stores that add something to another store. One
// that changes names must itself implement every capability that takes names,
// or [As] would find the wrapped store's and speak to it in the wrong names.
type Wrapper interface {
	// Unwrap returns the wrapped store.
	Unwrap() Store
}

// As finds the first store along s and what it wraps that has capability T.
func As[T any](s Store) (T, bool) {
	for s != nil {
		if t, ok := s.(T); ok {
			return t, true
		}
		w, ok := s.(Wrapper)
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	var zero T
	return zero, false
}

// GapReader is a capability of stores for which a request costs so much that
// reading a gap of unneeded bytes is cheaper than a second request.
type GapReader interface {
	// ReadGap returns the largest gap, in bytes, worth reading through.
	ReadGap() int64
}

// Cooler is a capability of stores that keep bytes in memory on the way and
// can be told to forget them, so that the next read comes from the medium: for
// measurements.
type Cooler interface {
	// Cool drops what is cached of the object name. If that is not possible
	// the error wraps errors.ErrUnsupported.
	Cool(ctx context.Context, name string) error
}

// Owner is the state of the process that made an object of a store.
type Owner int

const (
	// OwnerUnknown: the process may be on another host, or the store cannot tell.
	OwnerUnknown Owner = iota
	// OwnerAlive: the process still runs.
	OwnerAlive
	// OwnerDead: the process ran on this host and has ended.
	OwnerDead
)

// String returns unknown, running or dead.
func (o Owner) String() string {
	switch o {
	case OwnerAlive:
		return "running"
	case OwnerDead:
		return "dead"
	}
	return "unknown"
}

// Temp is the data that a writer keeps in a store until its Commit or Abort. No
// reader sees it. If the writer's process dies, it takes room until a sweep
// removes it.
type Temp struct {
	Name    string // not the name of an object
	Size    int64
	ModTime time.Time
	Owner   Owner
}

// Sweeper is a capability of stores on which a writer that died leaves a Temp
// behind. Both methods look at the directory dir only, not below it; the empty
// string is the top.
type Sweeper interface {
	// Temps returns the Temps of all writers in dir, including running ones.
	Temps(ctx context.Context, dir string) ([]Temp, error)
	// SweepTemp removes from dir each Temp whose owner is dead, and each of an
	// unknown owner that is at least olderThan old. It returns how many it
	// removed, also beside an error.
	SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (int, error)
}

// Lock is a lock that was found in a store.
type Lock struct {
	Name string
	// Note is the text that the owner left with the lock.
	Note []byte
	// Host and PID name the owner, for people.
	Host    string
	PID     int
	ModTime time.Time
	Owner   Owner
}

// HeldLock is a lock that this process holds.
type HeldLock interface {
	// SetNote replaces the note of the lock.
	SetNote(note []byte) error
	// Release gives the lock up and removes it.
	Release() error
}

// Locker is a capability of stores in which a process can see whether another
// process is alive: a lock is held until it is released or its process ends in any
// way. Names of locks follow the rules of objects, but locks are not objects.
type Locker interface {
	// TryLock takes the lock of that name and leaves note with it. It does not
	// wait: while another holder is alive the error wraps ErrLocked. If the
	// store cannot lock, it wraps errors.ErrUnsupported. A lock that a dead
	// process has left is taken over.
	TryLock(ctx context.Context, name string, note []byte) (HeldLock, error)
	// Locks returns the locks in the directory dir, but not below it.
	Locks(ctx context.Context, dir string) ([]Lock, error)
}

// DirectReader is a capability of readers that can read past the system's cache.
// A large range that is not cached is read faster that way, and does not push
// other data out of the cache. [ReadLarge] uses it.
type DirectReader interface {
	// Cached reports whether n bytes from off are better read by ReadAt: most of
	// them are in the system's cache, or the reader cannot read past it.
	Cached(off, n int64) bool
	// ReadDirect reads n bytes from off and returns them as a part of buf, which
	// begins at a multiple of Align and is at least n bytes and two times Align
	// long. It leaves nothing in the system's cache. Otherwise it is like ReadAt.
	ReadDirect(ctx context.Context, buf []byte, off, n int64) ([]byte, error)
}
