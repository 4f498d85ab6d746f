// Package grouptest holds the contract of [group.Group], and of the steps that run on one, as
// a test. It does not depend on how a group is made. The contract is in package group.
package grouptest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
)

// OpenFunc makes a group of n ranks and returns their ends, in the order of the ranks. It
// registers its cleanup with t.Cleanup.
type OpenFunc func(t *testing.T, n int) []group.Group

// Options says how the suite runs. Nil is the same as the zero value.
type Options struct {
	// Sizes are the group sizes to test. Nil: 1, 2, 3, 8.
	Sizes []int
	// Real is for groups that reach outside the process, by sockets for
	// example. Unless it is set each test runs in a synctest bubble, where a
	// hang is reported as a deadlock at once and a goroutine left behind as a
	// leak; with it, a hang is a context that ends after half a minute.
	Real bool
	// Reuse is for real groups that take long to make: the tests of one size
	// share a group, except those in which a rank leaves.
	Reuse bool
	// Leave makes g's rank leave the group for good. Nil: this is not tested.
	Leave func(g group.Group)
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.Sizes == nil {
		v.Sizes = []int{1, 2, 3, 8}
	}
	return v
}

// Run tests that the groups that open makes keep the contract.
func Run(t *testing.T, open OpenFunc, opts *Options) {
	o := opts.withDefaults()
	pairs := 0
	for _, n := range o.Sizes {
		isPair := deep.On() || n == 1 || pairs == 0
		if n > 1 {
			pairs++
		}
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			s := &suite{open: open, leave: o.Leave, real: o.Real, n: n, pairs: isPair}
			if o.Real && o.Reuse {
				s.shared = open(t, n)
			}

			t.Run("values", s.values)
			t.Run("barrier", s.barrier)
			t.Run("sub", s.subGroups)
			t.Run("cancel", s.cancel)
			if n > 1 { // one rank has no other rank to differ from
				t.Run("mismatch", s.mismatch)
			}

			t.Run("invalid", s.invalid)
			t.Run("stress", s.stress)
			t.Run("steps", s.steps)

			if has[group.Messenger](s, t) {
				t.Run("messages", s.messages)
			}
			if n > 1 && has[group.Alarmer](s, t) {
				t.Run("alarms", s.alarms)
			}
			if n > 1 && s.leave != nil {
				t.Run("gone", s.gone)
			}
		})
	}
}

// suite is the tests for one group size.
type suite struct {
	open   OpenFunc
	leave  func(group.Group)
	real   bool
	n      int
	shared []group.Group // for all tests, or nil
	// pairs means that messages between two ranks are tested. Groups of other sizes have the
	// same two ranks, and more that do nothing: one size is enough, and one rank alone.
	pairs bool
}

// has reports whether the groups have the capability T.
func has[T any](s *suite, t *testing.T) bool {
	gs := s.shared
	if gs == nil {
		gs = s.open(t, 1)
	}
	_, ok := gs[0].(T)
	return ok
}

// test runs fn with a group that works, in a bubble where that is possible.
func (s *suite) test(t *testing.T, name string, fn func(e *env)) {
	if s.shared == nil {
		s.fresh(t, name, fn)
		return
	}
	t.Run(name, func(t *testing.T) { fn(&env{T: t, gs: s.shared, real: true}) })
}

// fresh runs fn with a new group.
func (s *suite) fresh(t *testing.T, name string, fn func(e *env)) {
	t.Run(name, func(t *testing.T) {
		run := func(t *testing.T) { fn(&env{T: t, gs: s.open(t, s.n), real: s.real}) }
		if s.real {
			run(t)
			return
		}
		synctest.Test(t, run)
	})
}

// patience bounds how long a rank waits in real time. A busy machine may take minutes for work
// of milliseconds.
const patience = 10 * time.Minute

// env is one test's group.
type env struct {
	*testing.T
	gs   []group.Group
	real bool
}

// context returns the context of a rank that the test does not cancel.
func (e *env) context() context.Context {
	if !e.real {
		return e.T.Context()
	}
	ctx, cancel := context.WithTimeout(e.T.Context(), patience)
	e.Cleanup(cancel)
	return ctx
}

// idle returns when every rank that runs is likely to wait for another one. In
// a bubble that is certain; elsewhere the contract holds whether it is or not.
func (e *env) idle() {
	if e.real {
		time.Sleep(2 * time.Millisecond)
		return
	}
	synctest.Wait()
}

// rankFunc is the part of one rank in a test.
type rankFunc func(ctx context.Context, g group.Group) error

// pending are ranks at work.
type pending struct {
	wg   sync.WaitGroup
	errs []error
}

func (p *pending) wait() []error {
	p.wg.Wait()
	return p.errs
}

// start runs fn on the ranks of gs that pick accepts.
func (e *env) start(ctx context.Context, gs []group.Group, pick func(rank int) bool, fn rankFunc) *pending {
	p := &pending{errs: make([]error, len(gs))}
	for r, g := range gs {
		if pick(r) {
			p.wg.Go(func() { p.errs[r] = fn(ctx, g) })
		}
	}
	return p
}

// all runs fn on every rank and returns their errors.
func (e *env) all(fn rankFunc) []error {
	return e.start(e.context(), e.gs, func(int) bool { return true }, fn).wait()
}

// must runs fn on every rank and stops the test if one returns an error.
func (e *env) must(what string, fn rankFunc) {
	e.Helper()
	for r, err := range e.all(fn) {
		if err != nil {
			e.Fatalf("%s on rank %d = %v; want no error", what, r, err)
		}
	}
}

// usable checks that the group serves calls, as it must after a failed one.
func (e *env) usable() {
	e.Helper()
	e.must("barrier after a failure", func(ctx context.Context, g group.Group) error { return g.Barrier(ctx) })
	e.must("all-gather after a failure", checkAllGather)
}

// same checks that every rank got a *group.Error of one text that wraps all of
// targets, and returns one of them.
func (e *env) same(errs []error, targets ...error) *group.Error {
	e.Helper()
	var first *group.Error
	for r, err := range errs {
		ge, ok := errors.AsType[*group.Error](err)
		if !ok {
			e.Fatalf("rank %d got %v; want a *group.Error", r, err)
		}
		if first == nil {
			first = ge
		}
		if err.Error() != errs[0].Error() || !slices.Equal(ge.Ranks, first.Ranks) {
			e.Fatalf("rank %d got %q, rank 0 %q; want one outcome", r, err, errs[0])
		}

		for _, target := range targets {
			if !errors.Is(err, target) {
				e.Fatalf("rank %d got %q; want it to wrap %q", r, err, target)
			}
		}
	}

	return first
}

// blames checks that every rank got the same error and that it names ranks.
func (e *env) blames(errs []error, ranks []int, targets ...error) {
	e.Helper()
	if ge := e.same(errs, targets...); !slices.Equal(ge.Ranks, ranks) {
		e.Fatalf("error %q names %v; want %v", ge, ge.Ranks, ranks)
	}
}

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

// wantGone checks that all but rank skip got the same error, which says that
// rank is gone.
func (e *env) wantGone(errs []error, skip, rank int) {
	e.Helper()
	e.blames(slices.Delete(slices.Clone(errs), skip, skip+1), []int{rank}, group.ErrGone)
}

// peerError checks that err is of op, names rank and wraps targets.
func (e *env) peerError(err error, op group.Op, rank int, targets ...error) {
	e.Helper()
	ge, ok := errors.AsType[*group.Error](err)
	if !ok || ge.Op != op || !slices.Equal(ge.Ranks, []int{rank}) {
		e.Errorf("error = %v; want one of %s that names rank %d", err, op, rank)
	}

	for _, target := range targets {
		if !errors.Is(err, target) {
			e.Errorf("error = %v; want it to wrap %q", err, target)
		}
	}
}

// recvBriefly is a call of RecvInto with a context that ends once other calls had a number of
// turns.
func (e *env) recvBriefly(m group.Messenger, from int, b []byte, turns int) error {
	ctx, cancel := context.WithCancel(e.context())
	defer cancel()

	errs := make(chan error, 1)
	go func() { errs <- m.RecvInto(ctx, from, 8, b) }()

	for range turns {
		select {
		case err := <-errs:
			return err
		default:
			runtime.Gosched()
		}
	}

	cancel()
	return <-errs
}
