package native

import (
	"math/bits"
	"sync"
)

// progress tells somebody of the bytes that were moved, in the units of the plan:
// headers, padding and rounding are left out of account, so that what it tells
// of sums up to the bytes of the plan's items.
type progress struct {
	tell  func(bytes int64) // nil: nobody wants to know
	plan  int64             // bytes of the plan's items
	total int64             // bytes to be moved for them

	mu    sync.Mutex
	moved int64 // of total; guarded by mu
	told  int64 // of plan; guarded by mu
}

// add counts n moved bytes.
func (p *progress) add(n int64) {
	if p.tell == nil {
		return
	}
	if n = p.share(n); n > 0 {
		p.tell(n)
	}
}

// share counts n moved bytes and returns how many of the plan's bytes they stand
// for.
func (p *progress) share(n int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = min(p.moved+n, p.total)
	share := p.plan
	if p.moved < p.total {
		hi, lo := bits.Mul64(uint64(p.plan), uint64(p.moved))
		q, _ := bits.Div64(hi, lo, uint64(p.total))
		share = int64(q)
	}
	n = share - p.told
	p.told = share
	return n
}
