// Package bufpool lends page-aligned buffers and takes them back, so that bytes
// on their way between memory and storage use the same few pages over and over:
// the first touch of fresh memory costs more than the copy. It knows nothing of
// what the bytes are.
package bufpool

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/blob"
)

// Pool lends buffers of one size, no more than a budget allows at a time.
type Pool struct {
	size   int
	budget *semaphore.Weighted
	count  int64
}

// New returns a pool of buffers of size bytes, a multiple of blob.Align, that lends
// at most budget bytes at once and always at least min buffers.
func New(size int, budget int64, min int64) *Pool {
	if size <= 0 || size%blob.Align != 0 {
		panic(fmt.Sprintf("bufpool: size %d is not a multiple of %d", size, blob.Align))
	}
	n := max(min, budget/int64(size))
	return &Pool{size: size, budget: semaphore.NewWeighted(n), count: n}
}

// Size returns the size of the buffers.
func (p *Pool) Size() int { return p.size }

// Count returns how many buffers may be lent at once.
func (p *Pool) Count() int { return int(p.count) }

// Get lends a buffer, waiting until one is free. Its contents are arbitrary.
func (p *Pool) Get(ctx context.Context) ([]byte, error) {
	if err := p.budget.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return take(p.size), nil
}

// Put takes a buffer back.
func (p *Pool) Put(b []byte) {
	give(b[:p.size:p.size])
	p.budget.Release(1)
}

// free holds returned buffers of all pools by size: pools come and go with
// saves and loads, the memory stays.
var free = struct {
	mu     sync.Mutex
	bySize map[int][][]byte // guarded by mu
	bytes  int64            // guarded by mu
}{bySize: map[int][][]byte{}}

// keepBytes bounds the memory that is kept while nobody uses it.
const keepBytes = 128 << 20

func take(size int) []byte {
	free.mu.Lock()
	defer free.mu.Unlock()
	if l := free.bySize[size]; len(l) > 0 {
		b := l[len(l)-1]
		free.bySize[size] = l[:len(l)-1]
		free.bytes -= int64(size)
		return b
	}
	return blob.AlignedBytes(size)
}

func give(b []byte) {
	free.mu.Lock()
	defer free.mu.Unlock()
	if free.bytes+int64(len(b)) > keepBytes {
		return
	}
	free.bySize[len(b)] = append(free.bySize[len(b)], b)
	free.bytes += int64(len(b))
}
