package grouptest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

// alarms tests groups that are a [group.Alarmer].
func (s *suite) alarms(t *testing.T) {
	for name, fail := range map[string]func(context.CancelFunc) error{
		"an error":             func(context.CancelFunc) error { return errUnknown },
		"a panic":              func(context.CancelFunc) error { panic(errUnknown) },
		"a context that ended": func(cancel context.CancelFunc) error { cancel(); return context.Canceled },
	} {
		s.test(t, name+" stops the other ranks", func(e *env) {
			for _, failing := range slices.Compact([]int{0, s.n / 2, s.n - 1}) {
				s.stopped(e, failing, fail)
			}
		})
	}
	s.test(t, "a step that succeeds raises no alarm", func(e *env) {
		e.must("steps", func(ctx context.Context, g group.Group) error {
			for range 100 {
				if err := group.Each(ctx, group.StopEarly(g), stepName, func(ctx context.Context) error { return ctx.Err() }); err != nil {
					return err
				}
			}
			return nil
		})
		for r, g := range e.gs {
			select {
			case <-g.(group.Alarmer).Alarmed():
				e.Errorf("rank %d is alarmed, but no rank has failed", r)
			default:
			}
		}
	})
	if s.leave != nil {
		s.fresh(t, "a rank that leaves", s.goneAlarm)
	}
}

// stopped lets one rank fail at a step while the other ranks would work for ever.
func (s *suite) stopped(e *env, failing int, fail func(context.CancelFunc) error) {
	errs := e.all(func(ctx context.Context, g group.Group) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return group.Each(ctx, group.StopEarly(g), stepName, func(ctx context.Context) error {
			if g.Rank() == failing {
				return fail(cancel)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
	if failed := e.stepFailed(errs); !slices.Equal(failed, []int{failing}) {
		e.Fatalf("error %q blames %v; want %d", errs[0], failed, failing)
	}
	e.usable()
}

// goneAlarm lets rank 0 leave while the other ranks work. The alarm ends their work.
func (s *suite) goneAlarm(e *env) {
	p := e.start(e.context(), e.gs, func(r int) bool { return r != 0 }, func(ctx context.Context, g group.Group) error {
		select {
		case <-g.(group.Alarmer).Alarmed():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("rank %d received no alarm: %w", g.Rank(), ctx.Err())
		}
	})
	e.idle()
	s.leave(e.gs[0])
	if err := errors.Join(p.wait()...); err != nil {
		e.Error(err)
	}
}
