package collective

import (
	"context"
	"sync"
	"time"
)

// patience is how long a call runs before this rank looks whether another one's
// Comm is broken. Most calls are over by then and cost nothing.
const patience = 5 * time.Millisecond

// watches are the goroutines that wait for notices while calls run.
type watches struct {
	ctx    context.Context
	cancel context.CancelFunc
	peers  map[int]bool // guarded by the Comm's mu
	wg     sync.WaitGroup
}

// activate notes that a call runs, so that it ends when the Comm breaks. The
// caller must call leave at the end of it.
func (c *Comm) activate(ctx context.Context, w *Work, t *task) (inner context.Context, leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return nil, nil, c.broken.of(kinds[t.call.kind])
	}
	inner, cancel := context.WithCancelCause(ctx)
	c.active[w] = activity{cancel, t.wide}
	if c.size == 1 {
		return inner, func() { c.deactivate(w); cancel(nil) }, nil
	}
	timer := time.AfterFunc(patience, func() { c.watch(w) })
	return inner, func() {
		timer.Stop()
		c.deactivate(w)
		cancel(nil)
	}, nil
}

// deactivate notes that a call is over. The last one takes the watches along.
func (c *Comm) deactivate(w *Work) {
	c.mu.Lock()
	delete(c.active, w)
	var over *watches
	if len(c.active) == 0 {
		over, c.watches = c.watches, nil
	}
	c.mu.Unlock()
	if over != nil {
		over.cancel()
		over.wg.Wait()
	}
}

// watch waits for notices of all that the call w may wait for, unless it is over.
func (c *Comm) watch(w *Work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.active[w]
	if !ok || c.broken != nil {
		return
	}
	if c.watches == nil {
		ctx, cancel := context.WithCancel(context.Background())
		c.watches = &watches{ctx: ctx, cancel: cancel, peers: make(map[int]bool)}
	}
	peers := c.peers
	if a.wide {
		peers = c.others()
	}
	ws := c.watches
	for _, p := range peers {
		if !ws.peers[p] {
			ws.peers[p] = true
			ws.wg.Go(func() { c.listen(ws.ctx, p) })
		}
	}
}

// listen waits for a notice of peer. An error means that ctx has ended or a rank
// is gone, which those who wait for messages see for themselves.
func (c *Comm) listen(ctx context.Context, peer int) {
	b, err := c.m.Recv(ctx, peer, noticeTag)
	if err != nil {
		return
	}
	why, err := decodeNotice(b, c.size)
	if err != nil {
		why = &interruption{ranks: []int{peer}, err: err}
	}
	c.breakdown(why)
}
