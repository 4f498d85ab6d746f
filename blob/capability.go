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
	// Cool drops what is cached of the object name. Where that is not possible
	// the error wraps errors.ErrUnsupported.
	Cool(ctx context.Context, name string) error
}

// Sweeper is a capability of stores on which a writer that died leaves
// something behind that takes room, though no reader ever sees it.
type Sweeper interface {
	// SweepTemp removes what dead writers left behind at least olderThan ago
	// and returns how many things it removed, also beside an error. It spares
	// writers that are known to live; where a store cannot know, only
	// olderThan protects them.
	SweepTemp(ctx context.Context, olderThan time.Duration) (int, error)
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
