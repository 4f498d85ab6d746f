// Package bufpool lends page-aligned buffers and takes them back, so that bytes
// on their way between memory and storage use the same few pages over and over:
// the first touch of fresh memory costs more than the copy. It knows nothing of
// what the bytes are. The contract is in the comments of Pool and Usage.
package bufpool

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/blob"
)

// Pool lends buffers of one size, no more than a budget allows at a time. Its
// methods are safe for concurrent use.
type Pool struct {
	size   int
	budget *semaphore.Weighted
	count  int64
}

// New returns a pool of buffers of size bytes, a multiple of blob.Align, that
// lends at most budget bytes at once and always at least min buffers. It panics
// where no pool can be like that.
func New(size int, budget int64, min int64) *Pool {
	if size <= 0 || size%blob.Align != 0 || min <= 0 {
		panic(fmt.Sprintf("bufpool: %d buffers or more of %d bytes, which must be a multiple of %d", min, size, blob.Align))
	}
	n := max(min, budget/int64(size))
	return &Pool{size: size, budget: semaphore.NewWeighted(n), count: n}
}

// Size returns the size of the buffers.
func (p *Pool) Size() int { return p.size }

// Count returns how many buffers may be lent at once.
func (p *Pool) Count() int { return int(p.count) }

// Get lends a buffer, waiting until one is free. Its contents are arbitrary.
// Where ctx ends first the error is its cause.
func (p *Pool) Get(ctx context.Context) ([]byte, error) {
	if err := p.budget.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return shelf.take(p.size), nil
}

// Put takes a buffer back, whose end may have been cut off meanwhile. The caller
// must not use it any more.
func (p *Pool) Put(b []byte) {
	shelf.give(b[:p.size:p.size])
	p.budget.Release(1)
}
