package work

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/blob"
)

// Pool lends page-aligned buffers of one size, no more than a budget allows at a
// time, and takes them back: the first touch of fresh memory costs more than the
// copy. Its methods are safe for concurrent use.
type Pool struct {
	size   int
	budget *semaphore.Weighted
	count  int64
}

// NewPool returns a pool of buffers of size bytes, a multiple of blob.Align, that
// lends at most budget bytes at once and always at least min buffers. It panics if
// size or min is invalid.
func NewPool(size int, budget int64, min int64) *Pool {
	if size <= 0 || size%blob.Align != 0 || min <= 0 {
		panic(fmt.Sprintf("pool: %d buffers or more of %d bytes, which must be a multiple of %d", min, size, blob.Align))
	}
	n := max(min, budget/int64(size))
	return &Pool{size: size, budget: semaphore.NewWeighted(n), count: n}
}

// Size returns the size of the buffers.
func (p *Pool) Size() int { return p.size }

// Count returns how many buffers may be lent at once.
func (p *Pool) Count() int { return int(p.count) }

// Get lends a buffer, waiting until one is free. Its contents are arbitrary.
// If ctx ends first the error is its cause.
func (p *Pool) Get(ctx context.Context) ([]byte, error) {
	if err := p.budget.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return shelf.take(p.size), nil
}

// TryGet is like Get, but does not wait: it returns nil if no buffer is free.
func (p *Pool) TryGet() []byte {
	if !p.budget.TryAcquire(1) {
		return nil
	}
	return shelf.take(p.size)
}

// Put takes a buffer back, even if its end was cut off meanwhile. The caller must not use it
// any more.
func (p *Pool) Put(b []byte) {
	shelf.give(b[:p.size:p.size])
	p.budget.Release(1)
}

// keepBytes bounds the memory that is kept while it is not used.
const keepBytes = 128 << 20

// shelf holds the returned buffers of all pools: pools come and go with saves
// and loads, the memory stays.
var shelf = &buffers{keep: keepBytes, bySize: map[int][][]byte{}}

// Usage counts bytes of buffers over all pools of the process.
type Usage struct {
	Lent, Peak int64 // lent now, and the maximum since the last ResetPeak
	Kept       int64 // free
}

// Stats returns the usage at this moment.
func Stats() Usage {
	shelf.mu.Lock()
	defer shelf.mu.Unlock()
	return shelf.usage
}

// ResetPeak sets Peak to Lent.
func ResetPeak() {
	shelf.mu.Lock()
	defer shelf.mu.Unlock()
	shelf.usage.Peak = shelf.usage.Lent
}

// buffers are free buffers by size.
type buffers struct {
	keep int64

	mu     sync.Mutex
	bySize map[int][][]byte // guarded by mu
	usage  Usage            // guarded by mu
}

func (s *buffers) take(size int) []byte {
	s.mu.Lock()
	s.usage.Lent += int64(size)
	s.usage.Peak = max(s.usage.Peak, s.usage.Lent)
	b := s.pop(size)
	s.mu.Unlock()
	if b == nil {
		b = blob.AlignedBytes(size)
	}
	return b
}

// give takes a buffer back. If there is no room for it, it drops buffers of other
// sizes, which are less likely to be used again.
func (s *buffers) give(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()

	size := len(b)
	s.usage.Lent -= int64(size)
	if int64(size) > s.keep {
		return
	}

	for other := range s.bySize {
		for other != size && s.usage.Kept+int64(size) > s.keep {
			if s.pop(other) == nil {
				break
			}
		}
	}

	if s.usage.Kept+int64(size) > s.keep {
		return
	}

	s.bySize[size] = append(s.bySize[size], b)
	s.usage.Kept += int64(size)
}

// pop takes a free buffer off the shelf, or returns nil. It needs mu.
func (s *buffers) pop(size int) []byte {
	l := s.bySize[size]
	if len(l) == 0 {
		return nil
	}

	b := l[len(l)-1]
	l[len(l)-1] = nil
	s.bySize[size] = l[:len(l)-1]
	if len(l) == 1 {
		delete(s.bySize, size)
	}
	s.usage.Kept -= int64(size)
	return b
}
