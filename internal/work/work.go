// Package work has the tools for copies between memory and storage: buffers within a budget,
// functions in parallel, progress. It does not depend on the copied data. The contracts are
// at Pool, Each and Share.
package work

import (
	"context"
	"math/bits"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/group"
)

// Each calls fn with 0 to n-1, at most limit calls at the same time. The first
// error ends the context of the other calls, and Each returns it once all calls have
// ended. A panic of fn is an error. If ctx ends early, Each returns its cause.
func Each(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	for i := range n {
		if gctx.Err() != nil {
			break
		}
		g.Go(Guard(func() error { return fn(gctx, i) }))
	}

	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx) // cancelled is not done
}

// Guard returns fn with its panics as errors. Goroutines call stores and callbacks
// of the caller: a panic there would end the process, and the other ranks would wait.
func Guard(fn func() error) func() error {
	return func() error { return group.Catch(fn) }
}

// Share reports moved bytes as a share of a plan. Headers, padding and rounding do
// not count: the reported numbers sum up to the bytes of the plan's items.
type Share struct {
	Tell  func(bytes int64) // receives the numbers; nil: no reports
	Plan  int64             // bytes of the plan's items
	Total int64             // bytes to be moved for them

	mu    sync.Mutex
	moved int64 // of Total; guarded by mu
	told  int64 // of Plan; guarded by mu
}

// Add counts n moved bytes.
func (p *Share) Add(n int64) {
	if p.Tell == nil {
		return
	}
	if n = p.share(n); n > 0 {
		p.Tell(n)
	}
}

// share counts n moved bytes and returns how many of the plan's bytes they stand
// for.
func (p *Share) share(n int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.moved = min(p.moved+n, p.Total)
	share := p.Plan
	if p.moved < p.Total {
		hi, lo := bits.Mul64(uint64(p.Plan), uint64(p.moved))
		q, _ := bits.Div64(hi, lo, uint64(p.Total))
		share = int64(q)
	}

	n = share - p.told
	p.told = share
	return n
}
