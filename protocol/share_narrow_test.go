package protocol_test

import (
	"bytes"
	"context"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

// narrow is a group in which each message waits for its receiver.
type narrow struct {
	*inproc.Group
	post *post
}

// post are the messages of all ranks of a narrow group.
type post struct {
	mu    sync.Mutex
	lanes map[[3]int]chan []byte // guarded by mu
}

func (p *post) lane(from, to, tag int) chan []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := [3]int{from, to, tag}
	if p.lanes == nil {
		p.lanes = map[[3]int]chan []byte{}
	}
	if p.lanes[k] == nil {
		p.lanes[k] = make(chan []byte)
	}
	return p.lanes[k]
}

func (n *narrow) Send(ctx context.Context, to, tag int, b []byte) error {
	select {
	case n.post.lane(n.Rank(), to, tag) <- bytes.Clone(b):
		return nil
	case <-ctx.Done():
		return &group.Error{Op: group.OpSend, Ranks: []int{to}, Err: group.ContextError(ctx)}
	}
}

func (n *narrow) Recv(ctx context.Context, from, tag int) ([]byte, error) {
	select {
	case b := <-n.post.lane(from, n.Rank(), tag):
		return b, nil
	case <-ctx.Done():
		return nil, &group.Error{Op: group.OpRecv, Ranks: []int{from}, Err: group.ContextError(ctx)}
	}
}

func (n *narrow) RecvInto(ctx context.Context, from, tag int, b []byte) error {
	got, err := n.Recv(ctx, from, tag)
	if err == nil {
		err = group.CheckLength(from, len(got), len(b))
		copy(b, got)
	}
	return err
}
