package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
)

const (
	// patience bounds the wait for a block that another process downloads: it may have
	// been stopped.
	patience = time.Minute
	// asideTime is how long a cache that cannot keep a block does not try to keep others.
	asideTime = time.Minute
	// A process that waits looks every lookPause whether the block is there, which is
	// cheap, and every lockPause whether the other process has gone.
	lookPause = 4 * time.Millisecond
	lockPause = 32 * time.Millisecond
)

// reader reads an object block by block.
type reader struct {
	s     *Store
	name  string
	inner blob.Reader
	// versioned is inner if it reports its version. Otherwise the cache keeps no blocks.
	versioned blob.VersionReader
	closed    atomic.Bool

	asking chan struct{} // has an element while the version is asked for

	mu      sync.Mutex
	version string // guarded by mu; empty: not known yet
}

var _ blob.VersionReader = (*reader)(nil)

// reader returns a reader of an object that is open in the wrapped store.
func (s *Store) reader(name string, inner blob.Reader) blob.Reader {
	v, ok := inner.(blob.VersionReader)
	if s.folder == nil || !ok || inner.Size() <= s.opts.small {
		return inner
	}
	return &reader{s: s, name: name, inner: inner, versioned: v, version: v.Version(), asking: make(chan struct{}, 1)}
}

func (r *reader) Size() int64 { return r.inner.Size() }

func (r *reader) Close() error {
	r.closed.Store(true)
	return r.inner.Close()
}

// Version implements [blob.VersionReader].
func (r *reader) Version() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

// ReadAt implements [blob.Reader].
func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > r.Size() || int64(len(p)) > r.Size()-off || len(p) == 0 || r.closed.Load() || ctx.Err() != nil {
		return r.inner.ReadAt(ctx, p, off) // it returns the error
	}

	size := r.s.opts.block
	first, last := off/size, (off+int64(len(p))-1)/size
	return work.Each(ctx, int(last-first)+1, parallel, func(ctx context.Context, i int) error {
		n := first + int64(i)
		lo, hi := max(n*size, off), min((n+1)*size, off+int64(len(p)))
		return r.readBlock(ctx, n, p[lo-off:hi-off], lo-n*size)
	})
}

// fail returns the error of a read.
func (r *reader) fail(err error) error {
	return &blob.Error{Op: "read", Store: r.s.String(), Name: r.name, Err: err}
}

// readBlock fills p with the bytes from off on of the block n.
func (r *reader) readBlock(ctx context.Context, n int64, p []byte, off int64) error {
	id := r.blockID(n)
	for begin, next := time.Now(), time.Now(); ; {
		if done, err := r.get(ctx, id, n, p, off); done || err != nil {
			return err
		}
		if r.s.isAside() {
			return r.download(ctx, p, n*r.s.opts.block+off)
		}

		if now := time.Now(); !now.Before(next) {
			next = now.Add(lockPause)
			lock, err := r.s.folder.tryLock(ctx, id)
			if err == nil {
				defer lock.Release() // a lock that stays belongs to a dead process
				return r.fill(ctx, id, n, p, off)
			}
			if ctx.Err() == nil && (!errors.Is(err, blob.ErrLocked) || now.Sub(begin) > r.s.opts.patience) {
				r.s.stepAside(err)
				return r.download(ctx, p, n*r.s.opts.block+off)
			}
		}

		if err := sleep(ctx, lookPause); err != nil {
			return r.fail(err)
		}
	}
}

// get takes bytes of a block from the cache, and reports whether they were there.
func (r *reader) get(ctx context.Context, id blockID, n int64, p []byte, off int64) (bool, error) {
	version := r.Version()
	if version == "" {
		// If there is no block to compare with, the download tells the version.
		if !r.s.folder.has(ctx, id) {
			return false, nil
		}
		var err error
		if version, err = r.ask(ctx); err != nil {
			return false, err
		}
	}

	done, err := r.s.folder.get(ctx, id.at(version), r.length(n), p, off)
	if err != nil {
		if ctx.Err() != nil {
			return false, r.fail(context.Cause(ctx))
		}
		r.s.warn(err) // it is downloaded instead
	}

	if done {
		r.s.cached.Add(int64(len(p)))
	}
	return done, nil
}

// blockID returns the identity of the block n.
func (r *reader) blockID(n int64) blockID {
	return newBlockID(r.s.host, blob.JoinAddress(r.s.String(), r.name), r.Size(), r.s.opts.block, n)
}

// length returns the size of the block n.
func (r *reader) length(n int64) int64 {
	return min(r.s.opts.block, r.Size()-n*r.s.opts.block)
}

// ask asks the wrapped store for the version of the object, once.
func (r *reader) ask(ctx context.Context) (string, error) {
	select {
	case r.asking <- struct{}{}:
		defer func() { <-r.asking }()
	case <-ctx.Done():
		return "", r.fail(context.Cause(ctx))
	}

	if v := r.Version(); v != "" {
		return v, nil
	}

	info, err := r.s.inner.Stat(ctx, r.name)
	if err != nil {
		return "", err
	}
	if info.Size != r.Size() {
		return "", r.fail(fmt.Errorf("%w: it has %d bytes, not %d", blob.ErrChanged, info.Size, r.Size()))
	}
	return info.Version, r.note(info.Version)
}

// note notes the version of bytes that came from the wrapped store. It returns an error if
// others had another version.
func (r *reader) note(version string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version == "" {
		r.version = version
	}
	if r.version != version || version == "" {
		return r.fail(blob.ErrChanged)
	}
	return nil
}

// fill downloads the block n, keeps it, and fills p with its bytes from off on. The caller
// has its lock.
func (r *reader) fill(ctx context.Context, id blockID, n int64, p []byte, off int64) error {
	// Another process may have kept it since the last look.
	if done, err := r.get(ctx, id, n, p, off); done || err != nil {
		return err
	}

	all := p
	if length := r.length(n); int64(len(p)) < length {
		buf, err := r.s.bufs.Get(ctx)
		if err != nil {
			return r.fail(err)
		}
		defer r.s.bufs.Put(buf)
		all = buf[:length]
	}

	if err := r.download(ctx, all, n*r.s.opts.block); err != nil {
		return err
	}

	if len(all) != len(p) {
		copy(p, all[off:])
	}

	err := r.s.folder.put(ctx, id.at(r.Version()), all)
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, errNoRoom): // for this block, at this moment
		r.s.warn(err)
	default:
		r.s.stepAside(err)
	}

	return nil
}

// download reads from the wrapped store.
func (r *reader) download(ctx context.Context, p []byte, off int64) error {
	if err := r.inner.ReadAt(ctx, p, off); err != nil {
		return err
	}
	return r.note(r.versioned.Version())
}
