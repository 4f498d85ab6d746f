package grouptest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// env is one test's group.
type env struct {
	*testing.T
	gs   []group.Group
	real bool
}

// context returns the context of a rank that nobody cancels.
func (e *env) context() context.Context {
	if !e.real {
		return e.T.Context()
	}
	ctx, cancel := context.WithTimeout(e.T.Context(), 30*time.Second)
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

// rankFunc is what one rank does in a test.
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

func everyone(int) bool { return true }

// all runs fn on every rank and returns their errors.
func (e *env) all(fn rankFunc) []error {
	return e.start(e.context(), e.gs, everyone, fn).wait()
}

// must runs fn on every rank and stops the test where one returns an error.
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
