package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/collective"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

// Barrier returns once every rank of g has called it.
func (p *Platform) Barrier(ctx context.Context, g platform.Group) error {
	own, err := p.use(group.OpBarrier, g)
	if err != nil {
		return err
	}
	return own.inner.Barrier(ctx)
}

// AllGather hands every rank's v to every rank.
func (p *Platform) AllGather(ctx context.Context, g platform.Group, v []byte) ([][]byte, error) {
	own, err := p.use(group.OpAllGather, g)
	if err != nil {
		return nil, err
	}
	return own.inner.AllGather(ctx, v)
}

// Gather hands every rank's v to root.
func (p *Platform) Gather(ctx context.Context, g platform.Group, root int, v []byte) ([][]byte, error) {
	own, err := p.use(group.OpGather, g)
	if err != nil {
		return nil, err
	}
	return own.inner.Gather(ctx, root, v)
}

// Scatter hands vs[r] of root to rank r.
func (p *Platform) Scatter(ctx context.Context, g platform.Group, root int, vs [][]byte) ([]byte, error) {
	own, err := p.use(group.OpScatter, g)
	if err != nil {
		return nil, err
	}
	return own.inner.Scatter(ctx, root, vs)
}

// Broadcast hands root's v to all ranks.
func (p *Platform) Broadcast(ctx context.Context, g platform.Group, root int, v []byte) ([]byte, error) {
	own, err := p.use(group.OpBroadcast, g)
	if err != nil {
		return nil, err
	}
	return own.inner.Broadcast(ctx, root, v)
}

// Send hands v to rank to.
func (p *Platform) Send(ctx context.Context, g platform.Group, to, tag int, v []byte) error {
	m, err := p.messenger(group.OpSend, g, tag)
	if err != nil {
		return err
	}
	return m.Send(ctx, to, tag, v)
}

// Recv returns the next message that rank from sent to this one with tag.
func (p *Platform) Recv(ctx context.Context, g platform.Group, from, tag int) ([]byte, error) {
	m, err := p.messenger(group.OpRecv, g, tag)
	if err != nil {
		return nil, err
	}
	return m.Recv(ctx, from, tag)
}

// messenger returns what carries a group's messages with that tag. The tags above
// those that all may use are the tensor collectives'.
func (p *Platform) messenger(op group.Op, g platform.Group, tag int) (group.Messenger, error) {
	own, err := p.use(op, g)
	if err != nil {
		return nil, err
	}
	m, ok := own.inner.(group.Messenger)
	switch {
	case !ok:
		err = fmt.Errorf("no messages over %s: %w", own.Backend(), errors.ErrUnsupported)
	case tag > collective.MaxTag:
		err = fmt.Errorf("tag %d above %d: %w", tag, collective.MaxTag, group.ErrInvalid)
	default:
		return m, nil
	}
	return nil, &group.Error{Op: op, Ranks: []int{own.Rank()}, Err: err}
}
