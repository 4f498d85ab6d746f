package grouptest

import (
	"context"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// tripwire is a group that ends its rank's context when the rank is about to
// make a certain call.
type tripwire struct {
	group.Group
	left   int // calls to let pass
	cancel context.CancelFunc
}

func (w *tripwire) step() {
	if w.left == 0 {
		w.cancel()
	}
	w.left--
}

func (w *tripwire) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	w.step()
	return w.Group.Gather(ctx, root, v)
}

func (w *tripwire) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	w.step()
	return w.Group.Scatter(ctx, root, vs)
}

func (w *tripwire) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	w.step()
	return w.Group.Broadcast(ctx, root, v)
}

// endAtEachCall ends victim's context before each call of a step in turn, until
// the step has no further call.
func (e *env) endAtEachCall(step stepFunc, victim int) {
	for calls := 0; ; calls++ {
		var wire *tripwire
		errs := e.all(func(ctx context.Context, g group.Group) error {
			if g.Rank() != victim {
				return step(ctx, g, hooks{})
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			wire = &tripwire{Group: g, left: calls, cancel: cancel}
			return step(ctx, wire, hooks{})
		})
		if wire.left >= 0 { // the step made too few calls to trip
			if calls == 0 || slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
				e.Errorf("step with a live context, after %d that failed = %v; want success", calls, errs)
			}
			return
		}
		if failed := e.stepFailed(errs, context.Canceled); !slices.Equal(failed, []int{victim}) {
			e.Fatalf("context ended at call %d: error %q blames %v; want %d", calls, errs[0], failed, victim)
		}
	}
}
