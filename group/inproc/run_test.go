package inproc_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

func run(t *testing.T, n int, fn func(ctx context.Context, g group.Group) error) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { err = inproc.Run(t.Context(), n, fn) })
	return err
}

func TestRunCallsEveryRank(t *testing.T) {
	var sum atomic.Int64
	err := run(t, 5, func(ctx context.Context, g group.Group) error {
		sum.Add(int64(g.Rank()))
		return g.Barrier(ctx)
	})
	if err != nil || sum.Load() != 10 {
		t.Errorf("Run = %v, ranks add up to %d; want nil, 10", err, sum.Load())
	}
}

func TestRunNamesRanksAndJoinsEqualErrors(t *testing.T) {
	err := run(t, 4, func(ctx context.Context, g group.Group) error {
		if g.Rank() == 2 {
			return errDisk
		}
		return g.Barrier(ctx)
	})
	want := "run: ranks 0, 1, 3: barrier: rank 2: rank has left the group: disk on fire\nrun: rank 2: disk on fire"
	if err == nil || err.Error() != want || !errors.Is(err, errDisk) {
		t.Errorf("Run = %v; want %s", err, want)
	}
}

func TestRunTurnsPanicsIntoErrors(t *testing.T) {
	err := run(t, 3, func(ctx context.Context, g group.Group) error {
		if g.Rank() == 1 {
			panic("boom")
		}
		return g.Barrier(ctx)
	})
	if !errors.Is(err, group.ErrPanic) || !errors.Is(err, group.ErrGone) {
		t.Errorf("Run = %v; want a panic, and ranks that it left behind", err)
	}
	if text := fmt.Sprint(err); !strings.Contains(text, "panic: boom") || !strings.Contains(text, "run_test.go") {
		t.Errorf("Run = %v; want the panic's value and stack", err)
	}
}

func TestRunNoticesARankThatReturnsOrExitsEarly(t *testing.T) {
	err := run(t, 2, func(ctx context.Context, g group.Group) error {
		if g.Rank() == 0 {
			return nil
		}
		return g.Barrier(ctx)
	})
	if want := "run: rank 1: barrier: rank 0: rank has left the group"; err == nil || err.Error() != want {
		t.Errorf("Run = %v; want %s", err, want)
	}
	err = run(t, 2, func(ctx context.Context, g group.Group) error {
		if g.Rank() == 0 {
			runtime.Goexit()
		}
		return g.Barrier(ctx)
	})
	if err == nil || !strings.Contains(err.Error(), "run: rank 0: goroutine exited") {
		t.Errorf("Run = %v; want rank 0's exit", err)
	}
}

func TestRunAndNewOfNoRanks(t *testing.T) {
	if err := inproc.Run(t.Context(), 0, nil); !errors.Is(err, group.ErrInvalid) {
		t.Errorf("Run of no ranks = %v; want %v", err, group.ErrInvalid)
	}
	if gs := inproc.New(-1); len(gs) != 0 {
		t.Errorf("New(-1) = %d ranks; want none", len(gs))
	}
}
