// Package cache wraps a store and keeps the bytes read from it in a folder of this host, so
// that many processes that load the same checkpoint share one download. It does not depend on
// the content of the objects. It keeps the contract of blob.Store.
//
// Objects are cut into blocks. A block is kept under a key that has the address, the name,
// the size and the version of its object, so an object that is replaced has other blocks.
// Each read checks the checksums of the bytes that it uses. A process that needs a block
// which another one is downloading waits for it; if that process dies, it downloads the
// block itself. docs/design/0022-reader-cache.md has the reasons.
package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/size"
	"github.com/cairn-ckpt/cairn/internal/work"
)

const (
	// DirEnv and BytesEnv name the variables of the environment that FromEnv reads.
	DirEnv   = "CAIRN_CACHE"
	BytesEnv = "CAIRN_CACHE_BYTES"

	defaultBytes = 10 << 30
	// blockBytes is the size of blocks: large enough that a request for one costs little
	// more than its bytes, small enough that a read of little does not wait for much.
	blockBytes = 8 << 20
	// smallBytes is the size of the largest objects that are not kept: to ask for their
	// version takes as long as to read them.
	smallBytes = 64 << 10
	// parallel bounds the blocks that one read handles at the same time.
	parallel = 16
	// bufferBytes bounds the memory for blocks of which a reader wants only a part.
	bufferBytes = 128 << 20
)

var (
	_ blob.Store   = (*Store)(nil)
	_ blob.Wrapper = (*Store)(nil)
	_ blob.Knower  = (*Store)(nil)
	_ blob.Meter   = (*Store)(nil)
	_ blob.Cooler  = (*Store)(nil)
)

// Options describe a cache.
type Options struct {
	// Dir is the folder of the cache. New makes it, for this user alone, if it does not
	// exist. All processes of one user of a host may use the same folder, for different
	// stores too. It should be on a local disk.
	Dir string
	// Bytes bounds the size of all files of the cache. If it is exceeded, the blocks are
	// removed that were not read for the longest time. All processes should set the same
	// bound. Zero: 10 GiB.
	Bytes int64
	// Logger receives a warning if the cache cannot be used. Nil: no log.
	Logger *slog.Logger

	// For tests. Zero: the constants of these names.
	block, small        int64
	patience, asideTime time.Duration
}

// Store reads the objects of another store through a cache. Everything but reads goes
// directly to the wrapped store.
type Store struct {
	inner  blob.Store
	host   string
	opts   Options
	folder *folder // nil: it cannot be used, and reads go to the wrapped store
	bufs   *work.Pool
	cached atomic.Int64 // bytes that came from the folder
	aside  atomic.Int64 // until this time, in nanoseconds since 1970, no blocks are kept
	warned sync.Once
}

// New returns a store that reads the objects of s through the cache in a folder. The error
// wraps errors.ErrUnsupported if s has no versions, because the cache could not tell
// whether an object was replaced. It is also an error if another user can write to the
// folder. If the folder cannot be made, reads work without it, and the log has a warning.
func New(s blob.Store, o Options) (*Store, error) {
	if !blob.HasVersions(s) {
		return nil, fmt.Errorf("a cache for %s, which has no versions: %w", s, errors.ErrUnsupported)
	}
	if o.Dir == "" || o.Bytes < 0 {
		return nil, fmt.Errorf("a cache for %s: want a folder and a bound that is not negative", s)
	}

	o.Bytes = cmp.Or(o.Bytes, defaultBytes)
	o.block, o.small = cmp.Or(o.block, blockBytes), cmp.Or(o.small, smallBytes)
	o.patience, o.asideTime = cmp.Or(o.patience, patience), cmp.Or(o.asideTime, asideTime)
	c := &Store{inner: s, opts: o, bufs: work.NewPool(int(o.block), bufferBytes, 1)}
	if h, ok := blob.As[blob.Hosted](s); ok {
		c.host = h.Host()
	}

	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		c.folder, err = openFolder(dir, o.Bytes)
	}
	if errors.Is(err, errOwner) {
		return nil, err
	}
	if err != nil {
		c.folder = nil
		c.warn(err)
	}

	return c, nil
}

// withoutKey is the key of contexts of Without.
type withoutKey struct{}

// Without returns a context with which FromEnv uses no cache. It is for callers that must
// read the storage itself, such as a verification.
func Without(ctx context.Context) context.Context { return context.WithValue(ctx, withoutKey{}, true) }

// FromEnv returns s with the cache that the environment asks for: CAIRN_CACHE is its
// folder, CAIRN_CACHE_BYTES its bound, such as 200GiB. If CAIRN_CACHE is not set or empty,
// it returns s.
func FromEnv(ctx context.Context, s blob.Store) (blob.Store, error) {
	o := Options{Dir: os.Getenv(DirEnv), Logger: blob.Logger(ctx)}
	if o.Dir == "" || ctx.Value(withoutKey{}) != nil || !blob.HasVersions(s) {
		return s, nil
	}

	if text := os.Getenv(BytesEnv); text != "" {
		var err error
		if o.Bytes, err = size.Parse(text); err != nil {
			return nil, fmt.Errorf("%s: %w", BytesEnv, err)
		}
	}

	c, err := New(s, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", DirEnv, err)
	}
	return c, nil
}

// stepAside warns, and makes reads go to the wrapped store for asideTime, unless the block
// is in the folder. Otherwise every read would find out by itself that the disk is full, or
// that another process holds a lock, after it has downloaded a whole block.
func (s *Store) stepAside(err error) {
	s.aside.Store(time.Now().Add(s.opts.asideTime).UnixNano())
	s.warn(err)
}

// isAside reports whether the cache has stepped aside.
func (s *Store) isAside() bool { return time.Now().UnixNano() < s.aside.Load() }

// warn logs that the cache cannot be used, once.
func (s *Store) warn(err error) {
	s.warned.Do(func() {
		if s.opts.Logger != nil {
			s.opts.Logger.Warn("reads do without the cache", "dir", s.opts.Dir, "store", s.String(), "error", err)
		}
	})
}

// String returns the location of the wrapped store.
func (s *Store) String() string { return s.inner.String() }

// Unwrap returns the wrapped store.
func (s *Store) Unwrap() blob.Store { return s.inner }

// Parent implements [blob.Child]. The folder above is read through the same cache.
func (s *Store) Parent() (blob.Store, string, error) {
	parent, name, err := blob.Parent(s.inner)
	if err != nil {
		return nil, "", err
	}
	cached, err := New(parent, s.opts)
	if err != nil {
		return nil, "", err
	}
	return cached, name, nil
}

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	return s.inner.Create(ctx, name, opts)
}

// Stat implements [blob.Store].
func (s *Store) Stat(ctx context.Context, name string) (blob.Info, error) {
	return s.inner.Stat(ctx, name)
}

// List implements [blob.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return s.inner.List(ctx, prefix)
}

// Remove implements [blob.Store]. Blocks of the object stay until there is no room for
// them.
func (s *Store) Remove(ctx context.Context, name string) error { return s.inner.Remove(ctx, name) }

// Open implements [blob.Store]. It opens the object in the wrapped store, which returns
// the version that the object has now.
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.inner.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.reader(name, r), nil
}

// OpenKnown implements [blob.Knower]. If the version is not known, a read that finds a
// block asks for it, once.
func (s *Store) OpenKnown(ctx context.Context, o blob.Info) (blob.Reader, error) {
	r, err := blob.OpenKnown(ctx, s.inner, o)
	if err != nil {
		return nil, err
	}
	return s.reader(o.Name, r), nil
}

// Traffic implements [blob.Meter]: the traffic of the wrapped store, and the bytes that came
// from the cache.
func (s *Store) Traffic() blob.Traffic {
	var t blob.Traffic
	if m, ok := blob.As[blob.Meter](s.inner); ok {
		t = m.Traffic()
	}
	t.Cached = s.cached.Load()
	return t
}

// Cool implements [blob.Cooler]. It is not possible: other processes use the cache.
func (s *Store) Cool(_ context.Context, name string) error {
	return &blob.Error{Op: "cool", Store: s.String(), Name: name, Err: errors.ErrUnsupported}
}
