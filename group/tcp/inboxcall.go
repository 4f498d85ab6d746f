package tcp

import (
	"context"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// receipt is a call of Recv or RecvInto.
type receipt struct {
	sized   bool   // RecvInto
	into    []byte // its memory
	leaving bool   // it is to end without a message; guarded by mail.mu
	got     []byte // set before done is closed
	done    chan struct{}
}

// recv takes the next message of a lane into memory of its own.
func (m *mail) recv(ctx context.Context, g *Group, from, tag int) ([]byte, error) {
	c := &receipt{done: make(chan struct{})}
	if err := m.await(ctx, g, from, tag, c); err != nil {
		return nil, err
	}
	return c.got, nil
}

// recvInto takes the next message of a lane into b.
func (m *mail) recvInto(ctx context.Context, g *Group, from, tag int, b []byte) error {
	c := &receipt{sized: true, into: b, done: make(chan struct{})}
	if err := m.await(ctx, g, from, tag, c); err != nil {
		return err
	}
	return group.CheckLength(from, len(c.got), len(b))
}

// await waits until c has a message, while the group and the context last.
func (m *mail) await(ctx context.Context, g *Group, from, tag int, c *receipt) error {
	if ctx.Err() != nil {
		return &group.Error{Op: group.OpRecv, Ranks: []int{from}, Err: group.ContextError(ctx)}
	}
	over, loss := g.Gone()
	m.mu.Lock()
	n := m.inLane(m.lane(g, from, tag))
	n.calls = append(n.calls, c)
	m.serve(n)
	m.mu.Unlock()
	select {
	case <-c.done: // also where the group is over
		return nil
	default:
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	case <-over:
		if !loss(group.OpRecv).Ends(g.Rank(), from) {
			limit := time.NewTimer(m.host.cfg.Timeout)
			defer limit.Stop()
			select {
			case <-c.done:
				return nil
			case <-ctx.Done():
			case <-limit.C:
			}
		}
	}
	if !m.withdraw(n, c) {
		return nil
	}
	if ctx.Err() != nil {
		return &group.Error{Op: group.OpRecv, Ranks: []int{from}, Err: group.ContextError(ctx)}
	}
	return loss(group.OpRecv)
}

// finish ends the call with a message.
func (c *receipt) finish(got []byte) {
	c.got = got
	close(c.done)
}

func (c *receipt) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
