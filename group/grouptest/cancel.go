package grouptest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// collective is a collective call as any rank makes it.
type collective struct {
	name string
	call rankFunc
}

// collectives are all calls, those with a root for the first and the last one.
func (s *suite) collectives() []collective {
	cs := []collective{
		{"all-gather", checkAllGather},
		{"barrier", func(ctx context.Context, g group.Group) error { return g.Barrier(ctx) }},
		{"sub", func(ctx context.Context, g group.Group) error {
			_, err := g.Sub(ctx, []int{0})
			return err
		}},
	}
	roots := []int{0, s.n - 1}[:min(s.n, 2)]
	for _, root := range roots {
		cs = append(cs, rootedCollectives(root)...)
	}
	return cs
}

func rootedCollectives(root int) []collective {
	return []collective{
		{fmt.Sprintf("gather to %d", root), func(ctx context.Context, g group.Group) error {
			return gather(ctx, g, root, short)
		}},
		{fmt.Sprintf("scatter from %d", root), func(ctx context.Context, g group.Group) error {
			return scatter(ctx, g, root, short)
		}},
		{fmt.Sprintf("broadcast from %d", root), func(ctx context.Context, g group.Group) error {
			_, err := g.Broadcast(ctx, root, nil)
			return err
		}},
	}
}

// errCause is registered, so that every rank finds it in the chain.
var errCause = errors.New("node is going down")

func init() { group.RegisterError("grouptest.errCause", errCause) }

func (s *suite) cancel(t *testing.T) {
	for _, c := range s.collectives() {
		s.test(t, "before "+c.name, func(e *env) {
			for victim := range s.n {
				s.cancelBefore(e, c.call, victim)
			}
		})
		if s.n > 1 {
			s.test(t, "during "+c.name, func(e *env) {
				for victim := range s.n {
					s.cancelDuring(e, c.call, victim)
				}
			})
		}
		s.test(t, "all during "+c.name, func(e *env) { s.cancelShared(e, c.call) })
	}
	if s.n > 1 {
		s.test(t, "deadline of one rank", s.deadline)
	}
}

// cancelBefore lets victim come with a context that has ended.
func (s *suite) cancelBefore(e *env, call rankFunc, victim int) {
	ended, cancel := context.WithCancelCause(e.context())
	cancel(errCause)
	errs := e.all(func(ctx context.Context, g group.Group) error {
		if g.Rank() == victim {
			ctx = ended
		}
		return call(ctx, g)
	})
	e.blames(errs, []int{victim}, context.Canceled, errCause)
	e.usable()
}

// cancelDuring ends victim's context while it waits for another rank, which
// comes later, to a call that has failed.
func (s *suite) cancelDuring(e *env, call rankFunc, victim int) {
	late := (victim + 1) % s.n
	doomed, cancel := context.WithCancelCause(e.context())
	early := e.start(e.context(), e.gs, func(r int) bool { return r != late }, func(ctx context.Context, g group.Group) error {
		if g.Rank() == victim {
			ctx = doomed
		}
		return call(ctx, g)
	})
	e.idle()
	cancel(errCause)
	errs := early.wait() // does not need the late rank
	errs[late] = call(e.context(), e.gs[late])
	e.blames(errs, []int{victim}, context.Canceled, errCause)
	e.usable()
}

// cancelShared ends the one context of all ranks while all but one wait.
func (s *suite) cancelShared(e *env, call rankFunc) {
	ctx, cancel := context.WithCancel(e.context())
	early := e.start(ctx, e.gs, func(r int) bool { return r != s.n-1 }, call)
	e.idle()
	cancel()
	errs := early.wait()
	errs[s.n-1] = call(ctx, e.gs[s.n-1])
	if ge := e.same(errs, context.Canceled); len(ge.Ranks) == 0 {
		e.Errorf("error %q names no rank", ge)
	}
	e.usable()
}

// deadline lets the last rank's context run out while the first does not come.
func (s *suite) deadline(e *env) {
	short, cancel := context.WithTimeout(e.context(), 10*time.Millisecond)
	defer cancel()
	barrier := func(ctx context.Context, g group.Group) error {
		if g.Rank() == s.n-1 {
			ctx = short
		}
		return g.Barrier(ctx)
	}
	errs := e.start(e.context(), e.gs, func(r int) bool { return r != 0 }, barrier).wait()
	errs[0] = barrier(e.context(), e.gs[0])
	e.blames(errs, []int{s.n - 1}, context.DeadlineExceeded)
	e.usable()
}
