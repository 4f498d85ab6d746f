package tree

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
)

// join makes this rank's next call with what it brings.
func (t *team) join(ctx context.Context, call group.Call, values []labelled) (*call, error) {
	t.node.mu.Lock()
	defer t.node.mu.Unlock()
	c := t.calls[t.next]
	if c == nil && t.lost != nil {
		return nil, t.lossOf(call.Op)
	}
	c = t.call(t.next)
	delete(t.alarms, t.next)
	t.next++
	c.entered, c.op = true, call.Op
	if c.decided {
		delete(t.calls, c.number)
		return c, nil
	}
	if err := t.check(ctx, call, values); err != nil {
		c.failHere(call.Op, err)
		return c, nil
	}
	held := false
	for _, v := range values {
		held = held || len(v.value) > maxInline
	}
	return c, c.enter(len(t.down), t.me, call, values, held)
}

// check returns why this rank cannot make the call, or nil.
func (t *team) check(ctx context.Context, call group.Call, values []labelled) error {
	n := t.ranks.size()
	if err := group.ContextError(ctx); err != nil {
		return err
	}
	if err := call.Check(n); err != nil {
		return err
	}
	if call.Op == group.OpScatter && t.me == call.Root {
		if err := group.CheckScatter(len(values), n); err != nil {
			return err
		}
	}
	for _, v := range values {
		if limit := t.node.opts.MaxValue; len(v.value) > limit {
			return fmt.Errorf("value of %d bytes, more than %d: %w", len(v.value), limit, group.ErrInvalid)
		}
	}
	return nil
}
