package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
)

// reader reads an object. If the object is replaced, reads fail.
type reader struct {
	s      *Store
	name   string
	size   int64
	prefix []byte // the first bytes
	closed atomic.Bool

	mu      sync.Mutex
	version string // guarded by mu; empty: not known yet
}

// Open implements [blob.Store]. It makes one request, which also reads the first bytes.
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	if err := check(ctx, name); err != nil {
		return nil, s.fail("open", name, err)
	}
	r := &reader{s: s, name: name}
	p := make([]byte, prefixBytes)
	n, o, err := s.get(ctx, r, p, 0)
	if err == nil && int64(n) != min(o.Size, prefixBytes) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, s.fail("open", name, err)
	}
	r.size, r.prefix = o.Size, p[:n:n]
	return r, nil
}

// OpenKnown implements [blob.Knower]. It makes no request.
func (s *Store) OpenKnown(ctx context.Context, o blob.Info) (blob.Reader, error) {
	if err := check(ctx, o.Name); err != nil {
		return nil, s.fail("open", o.Name, err)
	}
	return &reader{s: s, name: o.Name, size: o.Size, version: o.Version}, nil
}

func (r *reader) Size() int64 { return r.size }

// Version implements [blob.VersionReader].
func (r *reader) Version() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

func (r *reader) Close() error {
	r.closed.Store(true)
	return nil
}

// ReadAt implements [blob.Reader]. It reads large ranges in parts, in parallel.
func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := r.read(ctx, p, off); err != nil {
		return r.s.fail("read", r.name, err)
	}
	return nil
}

func (r *reader) read(ctx context.Context, p []byte, off int64) error {
	if r.closed.Load() {
		return blob.ErrClosed
	}
	if off < 0 || off > r.size || int64(len(p)) > r.size-off {
		return fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, len(p), off, r.size)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if off < int64(len(r.prefix)) {
		n := copy(p, r.prefix[off:])
		p, off = p[n:], off+int64(n)
	}
	if len(p) == 0 {
		return nil
	}
	size := rangeSize(len(p), r.s.opts.Parallel)
	n := (len(p) + size - 1) / size
	return work.Each(ctx, n, r.s.opts.Parallel, func(ctx context.Context, i int) error {
		lo, hi := i*size, min((i+1)*size, len(p))
		_, _, err := r.s.get(ctx, r, p[lo:hi], off+int64(lo))
		return err
	})
}

// rangeSize returns the size of the ranges in which n bytes are read: as many ranges as
// are read at the same time, but neither small ones, of which each costs a request, nor
// very large ones, of which the last one would be waited for.
func rangeSize(n, parallel int) int {
	if parallel == 1 {
		return n
	}
	return min(max((n+parallel-1)/parallel, minRange), maxRange)
}

// get reads the bytes from off on. Except for the request of Open, which does not know
// the size of the object, it reads all of p or returns an error. If an answer breaks off,
// the next attempt reads the rest.
func (s *Store) get(ctx context.Context, r *reader, p []byte, off int64) (n int, o Object, err error) {
	_, err = s.repeat(ctx, "read", s.prefix+r.name, len(p), func(ctx context.Context) error {
		more, now, err := s.hedged(ctx, r, p[n:], off+int64(n))
		switch {
		case err != nil && more == 0:
			return err
		case n > 0 && now.Size != o.Size:
			return fmt.Errorf("the service answers that the object has %d bytes, and then that it has %d", o.Size, now.Size)
		}
		n, o = n+more, now
		return err
	})
	if errors.Is(err, ErrCondition) {
		err = blob.ErrChanged
	}
	return n, o, err
}

// getOnce makes a request for get. With an error it returns the number of bytes that are
// the beginning of the range nevertheless.
func (s *Store) getOnce(ctx context.Context, r *reader, p []byte, off int64) (int, Object, error) {
	n, o, err := s.service.Get(ctx, s.prefix+r.name, r.Version(), p, off)
	s.count.received.Add(int64(n))
	early := n < len(p) && off+int64(n) < o.Size
	if err != nil && !early { // no bytes, or all of them with a wrong checksum
		return 0, o, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version == "" {
		r.version = o.Version
	}
	switch {
	case r.version != o.Version:
		return 0, o, ErrCondition
	case err == nil && early:
		err = &Error{Err: fmt.Errorf("%d of %d bytes: %w", n, len(p), io.ErrUnexpectedEOF), Retry: true}
	case n < len(p) && !early && r.size > 0: // Open knows the size
		return 0, o, fmt.Errorf("%w: it has %d bytes, not %d", blob.ErrChanged, o.Size, r.size)
	}
	return n, o, err
}

// hedged makes a request for get. If it takes much longer than most, it makes another,
// and the first answer counts.
func (s *Store) hedged(ctx context.Context, r *reader, p []byte, off int64) (int, Object, error) {
	begin := time.Now()
	wait := s.pace.patience(len(p), s.policy.Hedge)
	if wait <= 0 || len(p) > maxRange { // the second request needs as much memory
		return s.getOnce(ctx, r, p, off)
	}
	type answer struct {
		n   int
		o   Object
		err error
	}
	first, second := make(chan answer, 1), make(chan answer, 1)
	ctx1, cancel1 := context.WithCancel(ctx)
	ctx2, cancel2 := context.WithCancel(ctx)
	defer cancel1()
	defer cancel2()
	go func() {
		n, o, err := s.getOnce(ctx1, r, p, off)
		first <- answer{n, o, err}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case a := <-first:
		if a.err == nil {
			s.pace.note(len(p), time.Since(begin))
		}
		return a.n, a.o, a.err
	case <-timer.C:
	}
	if !s.mayHedge() {
		a := <-first
		return a.n, a.o, a.err
	}
	other := make([]byte, len(p))
	go func() {
		n, o, err := s.getOnce(ctx2, r, other, off)
		second <- answer{n, o, err}
	}()
	var a answer
	select {
	case a = <-first:
		if a.err == nil {
			cancel2()
		}
		if b := <-second; a.err != nil && b.err == nil {
			copy(p, other[:b.n])
			a = b
		}
	case a = <-second:
		if a.err != nil {
			a = <-first
			break
		}
		cancel1()
		<-first // it does not write to p any more
		copy(p, other[:a.n])
	}
	if a.err == nil {
		s.pace.note(len(p), time.Since(begin))
	}
	return a.n, a.o, a.err
}

// mayHedge reports whether another request is allowed, and counts it: at most one of
// twenty is made twice, so that a slow service does not get more work.
func (s *Store) mayHedge() bool {
	n := s.count.hedges.Add(1)
	if n > 1 && n*20 > s.count.requests.Load() {
		s.count.hedges.Add(-1)
		return false
	}
	return true
}

// pace knows how long reads take.
type pace struct {
	mu      sync.Mutex
	classes [8]recent // guarded by mu; of up to 1 MiB, 2 MiB, 4 MiB and so on
}

// recent holds the durations of the last reads.
type recent struct {
	times [64]time.Duration
	n     int
}

// class returns the class of reads of n bytes, at least 1. The caller holds mu.
func (c *pace) class(n int) *recent {
	return &c.classes[min(bits.Len(uint(n-1)>>20), len(c.classes)-1)]
}

func (c *pace) note(n int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.class(n)
	r.times[r.n%len(r.times)] = d
	r.n++
}

// patience returns after how long a read of n bytes is much slower than most, at least
// least. Zero: not known, or least is negative.
func (c *pace) patience(n int, least time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.class(n)
	if least < 0 {
		return 0
	}
	if r.n < 8 {
		return 10 * least
	}
	sorted := slices.Clone(r.times[:min(r.n, len(r.times))])
	slices.Sort(sorted)
	return max(least, 3*sorted[len(sorted)*9/10])
}
