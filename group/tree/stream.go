package tree

import (
	"context"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
)

// sendAll queues a piece on lanes. It is sent once all of them have sent it.
func sendAll(to []*lane, p piece) {
	left := new(atomic.Int32)
	left.Store(int32(len(to)))
	sent := p.sent
	p.sent = func() {
		if left.Add(-1) == 0 {
			sent()
		}
	}
	for _, ln := range to {
		ln.sendPiece(p)
	}
}

// stream sends what this rank holds, piece by piece, until the call is decided.
// Where the context ends the call is made to fail.
func (c *call) stream(ctx context.Context) {
	room := make(chan struct{}, ahead)
	for range ahead {
		room <- struct{}{}
	}
	for _, v := range c.outgoing() {
		to := c.route(v.rank)
		for off := 0; len(to) > 0 && (off == 0 || off < len(v.value)); off += maxPiece {
			select {
			case <-room:
			case <-c.done:
				return
			case <-ctx.Done():
				c.end(ctx)
				return
			}
			body := v.value[off:min(off+maxPiece, len(v.value))]
			f := frame{
				kind: kindPiece, id: c.team.id, number: c.number,
				label: v.rank, to: c.destination(v.rank), total: len(v.value), offset: off,
			}
			sendAll(to, piece{head: f.encode(), body: body, sent: func() { room <- struct{}{} }})
		}
	}
	n := c.team.node
	n.mu.Lock()
	defer n.mu.Unlock()
	c.streamed = true
	c.settle()
}

// route returns the lanes by which a value of this rank leaves.
func (c *call) route(label int) []*lane {
	t := c.team
	switch dst := c.destination(label); dst {
	case everyone:
		return t.lanes()
	case t.me:
		return nil
	default:
		return []*lane{t.towards(dst)}
	}
}

// end makes the call fail because this rank's context has ended.
func (c *call) end(ctx context.Context) {
	n := c.team.node
	n.mu.Lock()
	defer n.mu.Unlock()
	c.failHere(c.op, group.ContextError(ctx))
}

// wait returns once the call is decided, and takes part until then.
func (c *call) wait(ctx context.Context) {
	started, ended := c.started, ctx.Done()
	for {
		select {
		case <-c.done:
			return
		case <-started:
			started = nil
			c.stream(ctx)
		case <-ended:
			ended = nil
			c.end(ctx)
		}
	}
}
