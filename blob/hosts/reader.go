package hosts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	_ blob.CopyReader    = (*reader)(nil)
	_ blob.VersionReader = (*reader)(nil)
	_ blob.GapReader     = (*peerReader)(nil)
)

// place is one copy of an object: an open reader of the local store, or an object of a peer.
type place struct {
	host  string
	local blob.Reader
	peer  *peer
	info  blob.Info // of the object of the peer
}

// readAt reads from the copy.
func (c *place) readAt(ctx context.Context, p []byte, off int64) error {
	if c.local != nil {
		return c.local.ReadAt(ctx, p, off)
	}
	return c.peer.readAt(ctx, c.info, p, off)
}

// reader reads one copy of an object, and other copies if the caller asks for them.
type reader struct {
	s       *Store
	name    string
	size    int64
	version string
	closed  atomic.Bool

	mu       sync.Mutex
	places   []place         // guarded by mu; places are added and never removed
	complete bool            // guarded by mu; all hosts have been asked
	silent   map[string]bool // guarded by mu; hosts that were reported because they do not answer
}

// peerReader is a reader of which each read is a request to another host.
type peerReader struct{ *reader }

// ReadGap implements [blob.GapReader].
func (r *peerReader) ReadGap() int64 { return rangeGap }

// reader returns a reader of an object of the peer, which has the version that it has there.
func (p *peer) reader(o blob.Info) *peerReader {
	places := []place{{host: p.Host, peer: p, info: o}}
	return &peerReader{&reader{s: p.s, name: o.Name, size: o.Size, version: p.qualified(o).Version, places: places}}
}

// Size implements [blob.Reader].
func (r *reader) Size() int64 { return r.size }

// Version implements [blob.VersionReader].
func (r *reader) Version() string { return r.version }

// Close implements [blob.Reader].
func (r *reader) Close() error {
	r.closed.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, c := range r.places {
		if c.local != nil {
			errs = append(errs, c.local.Close())
		}
	}
	return errors.Join(errs...)
}

// ReadAt implements [blob.Reader]. It reads large ranges of another host over several
// connections.
func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	return r.ReadCopy(ctx, 0, p, off)
}

// ReadCopy implements [blob.CopyReader].
func (r *reader) ReadCopy(ctx context.Context, n int, p []byte, off int64) error {
	r.mu.Lock()
	known := n >= 0 && n < len(r.places)
	var c place
	if known {
		c = r.places[n]
	}
	r.mu.Unlock()

	var err error
	switch {
	case r.closed.Load():
		err = blob.ErrClosed
	case !known:
		err = fmt.Errorf("%w: no copy %d", blob.ErrRange, n)
	case off < 0 || off > r.size || int64(len(p)) > r.size-off:
		err = fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, len(p), off, r.size)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	default:
		err = c.readAt(ctx, p, off)
	}
	return r.s.fail("read", r.name, err)
}

// Copies implements [blob.CopyReader]. It asks all hosts, once.
func (r *reader) Copies(ctx context.Context) ([]string, error) {
	r.mu.Lock()
	complete := r.complete
	r.mu.Unlock()

	var err error
	if !complete {
		// A copy may have come to this host since.
		if in, openErr := r.s.local.Open(ctx, r.name); openErr == nil && !r.add(place{host: r.s.cfg.Host, local: in}, in.Size()) {
			in.Close()
		}
		err = r.s.find(ctx, r.name, func(p *peer, o blob.Info) bool {
			r.add(place{host: p.Host, peer: p, info: o}, o.Size)
			return true
		})
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.complete = complete || err == nil
	hosts := make([]string, len(r.places))
	for i, c := range r.places {
		hosts[i] = c.host
	}
	return hosts, r.s.fail("open", r.name, err)
}

// add adds a copy of the same size, unless the reader has the copy of that host, and reports
// whether it did.
func (r *reader) add(c place, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, had := range r.places {
		if had.host == c.host {
			return false
		}
	}
	if size != r.size || r.closed.Load() {
		return false
	}
	r.places = append(r.places, c)
	return true
}

// Report implements [blob.CopyReader]. It reports once for each reader that a host does not
// answer, and each damaged range. It also tells the host that keeps a damaged copy.
func (r *reader) Report(n int, err error) {
	r.mu.Lock()
	c := r.places[n]
	host := c.host
	quiet := errors.Is(err, ErrUnreachable) && r.silent[host]
	if errors.Is(err, ErrUnreachable) {
		if r.silent == nil {
			r.silent = map[string]bool{}
		}
		r.silent[host] = true
	}
	r.mu.Unlock()

	if !quiet {
		r.s.report(host, r.name, err)
	}
	if !errors.Is(err, ErrUnreachable) && !errors.Is(err, blob.ErrChanged) {
		r.s.tell(&c, r.name)
	}
}
