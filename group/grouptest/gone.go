package grouptest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

// gone tests that a rank that leaves for good is noticed by all others.
func (s *suite) gone(t *testing.T) {
	victims := slices.Compact([]int{0, 1, s.n / 2, s.n - 1})
	if s.real { // each needs a group of its own, which takes long
		victims = []int{0, s.n - 1}
	}
	for _, c := range s.collectives() {
		for _, victim := range victims {
			s.fresh(t, fmt.Sprintf("rank %d before %s", victim, c.name), func(e *env) { s.goneCall(e, c.call, victim, false) })
			s.fresh(t, fmt.Sprintf("rank %d during %s", victim, c.name), func(e *env) { s.goneCall(e, c.call, victim, true) })
		}
	}
	s.fresh(t, "groups that the rank was in, and others", s.goneSubs)
	s.fresh(t, "a step", s.goneStep)
	s.fresh(t, "messages", s.goneMessages)
}

// goneCall lets victim leave instead of making a call, before the others make
// it or while they wait.
func (s *suite) goneCall(e *env, call rankFunc, victim int, during bool) {
	others := func(r int) bool { return r != victim }
	if !during {
		s.leave(e.gs[victim])
	}
	p := e.start(e.context(), e.gs, others, call)
	if during {
		e.idle()
		s.leave(e.gs[victim])
	}
	e.wantGone(p.wait(), victim, victim)
	e.wantGone(e.start(e.context(), e.gs, others, call).wait(), victim, victim)
}

// wantGone checks that all but rank skip got the same error, which says that
// rank is gone.
func (e *env) wantGone(errs []error, skip, rank int) {
	e.Helper()
	e.blames(slices.Delete(slices.Clone(errs), skip, skip+1), []int{rank}, group.ErrGone)
}

// goneSubs lets the last rank leave: a group that it was in fails, one that it
// was not in goes on.
func (s *suite) goneSubs(e *env) {
	last := s.n - 1
	with, without := []int{last, 0}, ascending(s.n)[:last]
	subs := make([][2]group.Group, s.n)
	e.must("sub", func(ctx context.Context, g group.Group) error {
		for i, list := range [][]int{with, without} {
			sub, err := g.Sub(ctx, list)
			if err != nil {
				return err
			}
			subs[g.Rank()][i] = sub
		}
		return nil
	})
	s.leave(e.gs[last])
	err := subs[0][0].Barrier(e.context())
	if ge, ok := errors.AsType[*group.Error](err); !ok || !slices.Equal(ge.Ranks, []int{0}) || !errors.Is(err, group.ErrGone) {
		e.Errorf("barrier of a group with the rank that left = %v; want one that names it as rank 0", err)
	}
	errs := e.start(e.context(), e.gs, func(r int) bool { return r != last }, func(ctx context.Context, g group.Group) error {
		return checkAllGather(ctx, subs[g.Rank()][1])
	}).wait()
	if err := errors.Join(errs...); err != nil {
		e.Errorf("all-gather of a group without the rank that left = %v; want no error", err)
	}
}

// goneStep lets rank 0 leave when the others are in a step.
func (s *suite) goneStep(e *env) {
	p := e.start(e.context(), e.gs, func(r int) bool { return r != 0 }, func(ctx context.Context, g group.Group) error {
		return each(ctx, g, hooks{})
	})
	e.idle()
	s.leave(e.gs[0])
	if failed := e.stepFailed(p.wait()[1:], group.ErrGone); !slices.Equal(failed, []int{0}) {
		e.Errorf("the step blames %v; want rank 0", failed)
	}
}

// goneMessages lets the last rank leave, after it has sent messages, while the
// others wait for another one of it.
func (s *suite) goneMessages(e *env) {
	if _, ok := e.gs[0].(group.Messenger); !ok {
		return
	}
	last := s.n - 1
	others := func(r int) bool { return r != last }
	const small, large, none, silent = 1, 2, 3, 4 // tags
	p := e.start(e.context(), e.gs, others, func(ctx context.Context, g group.Group) error {
		_, err := messenger(g).Recv(ctx, last, none)
		return err
	})
	big := e.start(e.context(), e.gs, others, func(ctx context.Context, g group.Group) error {
		got := make([]byte, 1<<20+1)
		return errors.Join(messenger(g).RecvInto(ctx, last, large, got), equal("message", got, pattern(last, g.Rank(), len(got))))
	})
	for r := range last {
		m := messenger(e.gs[last])
		err := errors.Join(m.Send(e.context(), r, small, pattern(last, r, 100)), m.Send(e.context(), r, large, pattern(last, r, 1<<20+1)))
		if err != nil {
			e.Fatalf("send to rank %d: %v", r, err)
		}
	}
	s.leave(e.gs[last])
	for _, err := range p.wait()[:last] {
		e.peerError(err, group.OpRecv, last, group.ErrLeft)
	}
	if err := errors.Join(big.wait()...); err != nil {
		e.Errorf("what was sent before: %v", err)
	}
	e.peerError(messenger(e.gs[0]).Send(e.context(), last, none, nil), group.OpSend, last, group.ErrLeft)
	errs := e.start(e.context(), e.gs, others, func(ctx context.Context, g group.Group) error {
		m, next, before := messenger(g), (g.Rank()+1)%last, (g.Rank()+last-1)%last
		was, err := m.Recv(ctx, last, small)
		err = errors.Join(err, equal("message of the rank that left", was, pattern(last, g.Rank(), 100)))
		err = errors.Join(err, m.Send(ctx, next, small, pattern(g.Rank(), next, 100)))
		got, e := m.Recv(ctx, before, small)
		return errors.Join(err, e, equal("message of one that stays", got, pattern(before, g.Rank(), 100)))
	}).wait()
	if err := errors.Join(errs...); err != nil {
		e.Errorf("messages after a rank has left: %v", err)
	}
	if e.real {
		return // it takes long
	}
	_, err := messenger(e.gs[0]).Recv(e.context(), 0, silent)
	e.peerError(err, group.OpRecv, last, group.ErrLeft)
}
