package tcp

import (
	"context"

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
	v := m.vigil(ctx, group.OpRecv, g, from)
	if ctx.Err() != nil {
		return v.ended()
	}
	m.mu.Lock()
	n := m.inLane(m.lane(g, from, tag))
	n.calls = append(n.calls, c)
	m.serve(n)
	m.mu.Unlock()
	err := v.wait(c.done, nil)
	if err == nil || !m.withdraw(n, c) { // what has come counts, also where the group is over
		return nil
	}
	return err
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
