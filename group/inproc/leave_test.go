package inproc_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

var errDisk = errors.New("disk on fire")

// wantGone checks that err says that rank has left because of errDisk.
func wantGone(t *testing.T, err error, rank int) {
	t.Helper()
	ge, ok := errors.AsType[*group.Error](err)
	if !ok || !slices.Equal(ge.Ranks, []int{rank}) || !errors.Is(err, group.ErrGone) || !errors.Is(err, errDisk) {
		t.Errorf("error = %v; want one that says rank %d has left: %v", err, rank, errDisk)
	}
}

func TestLeaveFailsPendingAndLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := inproc.New(4)
		var wg sync.WaitGroup
		for _, g := range gs[:3] {
			wg.Go(func() {
				wantGone(t, g.Barrier(t.Context()), 3)
				_, err := g.AllGather(t.Context(), nil)
				wantGone(t, err, 3)
			})
		}
		synctest.Wait()
		gs[3].Leave(errDisk)
		gs[3].Leave(errors.New("again"))
		gs[2].Leave(errors.New("too")) // the first to leave stays the one named
		wg.Wait()
		wantGone(t, gs[3].Barrier(t.Context()), 3)
	})
}

// subs makes a group of ranks out of gs and returns its ends in their order.
func subs(t *testing.T, gs []*inproc.Group, ranks ...int) []*inproc.Group {
	t.Helper()
	out := make([]*inproc.Group, len(ranks))
	var wg sync.WaitGroup
	for _, g := range gs {
		wg.Go(func() {
			sub, err := g.Sub(t.Context(), ranks)
			if err != nil {
				t.Error(err)
			}
			if sub != nil {
				out[sub.Rank()] = sub.(*inproc.Group)
			}
		})
	}
	wg.Wait()
	return out
}

func TestLeaveReachesGroupsOfTheRankOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := inproc.New(4)
		with, without := subs(t, gs, 3, 2), subs(t, gs, 0, 1)
		nested := subs(t, with, 1, 0)
		var wg sync.WaitGroup
		wg.Go(func() { wantGone(t, with[1].Barrier(t.Context()), 0) })
		wg.Go(func() { wantGone(t, nested[0].Barrier(t.Context()), 1) })
		synctest.Wait()
		gs[3].Leave(errDisk)
		for _, g := range without {
			wg.Go(func() {
				if err := g.Barrier(t.Context()); err != nil {
					t.Errorf("barrier of ranks that stayed = %v; want no error", err)
				}
			})
		}
		wg.Wait()
	})
}

func TestLeaveOfASubGroupLeavesItsParentAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := inproc.New(2)
		sub := subs(t, gs, 1, 0)
		sub[0].Leave(errDisk)
		wantGone(t, sub[1].Barrier(t.Context()), 0)
		var wg sync.WaitGroup
		for _, g := range gs {
			wg.Go(func() {
				if err := g.Barrier(t.Context()); err != nil {
					t.Errorf("barrier of the parent = %v; want no error", err)
				}
			})
		}
		wg.Wait()
	})
}

func TestStepNamesTheRankThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := inproc.New(3)
		var wg sync.WaitGroup
		for _, g := range gs[1:] {
			wg.Go(func() {
				err := group.Each(t.Context(), g, "write", func(context.Context) error { return nil })
				if want := "write: rank 0: rank has left the group: disk on fire"; err == nil || err.Error() != want {
					t.Errorf("Each = %v; want %s", err, want)
				}
			})
		}
		synctest.Wait()
		gs[0].Leave(errDisk)
		wg.Wait()
	})
}

func TestOverlappingCallsOfARankAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := inproc.New(2)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := gs[0].Barrier(t.Context()); err != nil {
				t.Errorf("first call = %v; want no error", err)
			}
		})
		synctest.Wait()
		if err := gs[0].Barrier(t.Context()); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("overlapping call = %v; want %v", err, group.ErrInvalid)
		}
		if err := gs[1].Barrier(t.Context()); err != nil {
			t.Errorf("other rank's call = %v; want no error", err)
		}
		wg.Wait()
	})
}
