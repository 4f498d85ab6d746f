// Package progress tells a listener of bytes that were moved, in the units that
// the listener expects. It knows nothing of what is moved. The contract is at
// Share.
package progress

import (
	"math/bits"
	"sync"
)

// Share tells somebody of the bytes that were moved, in the units of the plan:
// headers, padding and rounding are left out of account, so that what it tells
// of sums up to the bytes of the plan's items.
type Share struct {
	Tell  func(bytes int64) // nil: nobody wants to know
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
