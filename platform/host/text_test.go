package host_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

// together runs fn on n ranks and returns their errors.
func together(t *testing.T, n int, fn func(p platform.Platform) error) []error {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, p := range goroutines(t, n) {
		wg.Go(func() { errs[r] = fn(p) })
	}
	wg.Wait()
	return errs
}

// An error about lists names the call and the list, however long it is.
func TestDifferentListsAreNamed(t *testing.T) {
	all := func(n int) []int {
		out := make([]int, n)
		for i := range out {
			out[i] = i
		}
		return out
	}
	for what, c := range map[string]struct {
		ranks int
		call  func(p platform.Platform, rank int) (platform.Group, error)
		want  string
		is    error
	}{
		"new": {3, func(p platform.Platform, rank int) (platform.Group, error) {
			return p.New(t.Context(), []int{rank / 2, 2})
		}, "new group: ranks 0, 2: rank 0 called new group([0 2]), rank 2 called new group([1 2]): ranks made different calls", group.ErrDisagree},
		"split": {4, func(p platform.Platform, rank int) (platform.Group, error) {
			return p.Split(t.Context(), p.World(), [][]int{{0, 1 + rank/3}, {3}})
		}, "split: ranks 0, 3: rank 0 called split([0 1] [3]), rank 3 called split([0 2] [3]): ranks made different calls", group.ErrDisagree},
		"new and split": {2, func(p platform.Platform, rank int) (platform.Group, error) {
			if rank == 0 {
				return p.New(t.Context(), []int{0})
			}
			return p.Split(t.Context(), p.World(), [][]int{{0}, {1}})
		}, "new group: ranks 0, 1: rank 0 called new group([0]), rank 1 called split([0] [1]): ranks made different calls", group.ErrDisagree},
		"many ranks": {24, func(p platform.Platform, rank int) (platform.Group, error) {
			return p.New(t.Context(), all(24)[:24-rank/23])
		}, "called new group([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 and 7 more]): ", group.ErrDisagree},
		"many lists": {8, func(p platform.Platform, rank int) (platform.Group, error) {
			parts, err := platform.Partition([]int{0}, 8)
			if err != nil {
				return nil, err
			}
			return p.Split(t.Context(), p.World(), parts[rank/7:])
		}, "rank 0 called split([0] [1] [2] [3] and 4 more lists), rank 7 called split([1] [2] [3] [4] and 3 more lists): ", group.ErrDisagree},
		"no list": {2, func(p platform.Platform, _ int) (platform.Group, error) {
			return p.New(t.Context(), nil)
		}, "new group: ranks 0, 1: no ranks in list 1 of 1: invalid argument", group.ErrInvalid},
		"another list": {2, func(p platform.Platform, _ int) (platform.Group, error) {
			return p.New(t.Context(), []int{0, 2})
		}, "new group: ranks 0, 1: rank 2 is not in the parent group: invalid argument", group.ErrInvalid},
	} {
		for r, err := range together(t, c.ranks, func(p platform.Platform) error {
			_, err := c.call(p, p.World().Rank())
			return err
		}) {
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: rank %d returned\n%v; want\n%s", what, r, err, c.want)
			}
		}
	}
}

func TestGroupAndPlatformString(t *testing.T) {
	for r, err := range together(t, 3, func(p platform.Platform) error {
		g, err := p.New(t.Context(), []int{1, 2})
		if err != nil {
			return err
		}
		rank, mine := p.World().Rank(), "<nil>"
		if g != nil {
			mine = fmt.Sprintf("host group [1 2], rank %d", rank-1)
		}
		want := fmt.Sprintf("host platform, rank %d of 3; host group [0 1 2], rank %d; %s", rank, rank, mine)
		if got := fmt.Sprintf("%v; %v; %v", p, p.World(), g); got != want {
			return fmt.Errorf("%s; want %s", got, want)
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if got := fmt.Sprint(goroutines(t, 20)[3].World()); got != "host group [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 and 4 more], rank 3" {
		t.Errorf("a large world prints as %q", got)
	}
}
