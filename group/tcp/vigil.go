package tcp

import (
	"context"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// vigil is how a call of Send or Recv waits: while its group and its context
// last.
type vigil struct {
	op       group.Op
	me, peer int // ranks in the group
	ctx      context.Context
	over     <-chan struct{}
	loss     func(group.Op) *group.Error
	patience time.Duration // once another rank has left
}

func (m *mail) vigil(ctx context.Context, op group.Op, g *Group, peer int) vigil {
	v := vigil{op: op, me: g.Rank(), peer: peer, ctx: ctx, patience: m.host.cfg.Timeout}
	v.over, v.loss = g.Gone()
	return v
}

func (v *vigil) error(err error) error {
	return &group.Error{Op: v.op, Ranks: []int{v.peer}, Err: err}
}

// ended returns the error of a context that has ended.
func (v *vigil) ended() error { return v.error(group.ContextError(v.ctx)) }

// check returns why there is no use in waiting, or nil.
func (v *vigil) check() error {
	select {
	case <-v.over:
		if err := v.loss(v.op); err.Ends(v.me, v.peer) {
			return err
		}
	default:
	}
	return nil
}

// wait waits for c. Where ended is closed before, the other rank is gone, which
// the group learns soon.
func (v *vigil) wait(c, ended <-chan struct{}) error {
	over := v.over
	var limit <-chan time.Time
	for {
		select {
		case <-c:
			return nil
		case <-ended:
			c, ended = nil, nil
		case <-v.ctx.Done():
			return v.ended()
		case <-over:
			if err := v.check(); err != nil {
				return err
			}
			t := time.NewTimer(v.patience)
			defer t.Stop()
			over, limit = nil, t.C
		case <-limit:
			return v.loss(v.op)
		}
	}
}
