package inproc_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

var errBroken = errors.New("broken")

// The other ranks would work for ever: without an alarm the bubble deadlocks.
func TestAFailureStopsTheOtherRanks(t *testing.T) {
	for _, failing := range []int{0, 1, 2} {
		for name, fail := range map[string]func(context.CancelFunc) error{
			"error":  func(context.CancelFunc) error { return errBroken },
			"panic":  func(context.CancelFunc) error { panic(errBroken) },
			"cancel": func(cancel context.CancelFunc) error { cancel(); return context.Canceled },
		} {
			synctest.Test(t, func(t *testing.T) {
				errs := make([]error, 3)
				err := inproc.Run(t.Context(), 3, func(ctx context.Context, g group.Group) error {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					errs[g.Rank()] = group.Each(ctx, group.StopEarly(g), "write", func(ctx context.Context) error {
						if g.Rank() == failing {
							return fail(cancel)
						}
						<-ctx.Done()
						return context.Cause(ctx)
					})
					// The group goes on.
					if g.Rank() == failing {
						ctx = t.Context()
					}
					return g.Barrier(ctx)
				})
				if err != nil {
					t.Fatal(err)
				}
				for rank, err := range errs {
					e, ok := errors.AsType[*group.StepError](err)
					if !ok || !slices.Equal(e.Ranks(), []int{failing}) || err.Error() != errs[0].Error() {
						t.Errorf("%s on rank %d: rank %d returned %v; want the same of rank %d on all", name, failing, rank, err, failing)
					}
				}
			})
		}
	}
}

func TestAStepThatSucceedsRaisesNoAlarm(t *testing.T) {
	err := inproc.Run(t.Context(), 3, func(ctx context.Context, g group.Group) error {
		for range 100 {
			if err := group.Each(ctx, group.StopEarly(g), "step", func(ctx context.Context) error { return ctx.Err() }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
