package grouptest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

func (s *suite) subGroups(t *testing.T) {
	s.test(t, "members and order are those listed", func(e *env) {
		for _, list := range s.lists() {
			e.must(fmt.Sprint("sub ", list), func(ctx context.Context, g group.Group) error {
				sub, err := g.Sub(ctx, list)
				if err != nil {
					return err
				}
				return checkSub(ctx, g, sub, list, list)
			})
		}
	})
	s.test(t, "a group of a group knows the outermost ranks", func(e *env) {
		outer := ascending(s.n)
		slices.Reverse(outer)
		inner := []int{s.n - 1, 0}[:min(s.n, 2)]
		want := []int{outer[inner[0]], outer[0]}[:min(s.n, 2)]
		e.must("nested sub", func(ctx context.Context, g group.Group) error {
			mid, err := g.Sub(ctx, outer)
			if err != nil {
				return err
			}
			sub, err := mid.Sub(ctx, inner)
			if err != nil {
				return err
			}
			return checkSub(ctx, mid, sub, inner, want)
		})
	})
	s.test(t, "groups of one list are independent", s.independent)
	s.test(t, "a failure stays in its group", s.contained)
}

// lists are lists of ranks to make groups of.
func (s *suite) lists() [][]int {
	all := ascending(s.n)
	back := slices.Clone(all)
	slices.Reverse(back)
	lists := [][]int{all, back}
	for r := range s.n {
		lists = append(lists, []int{r})
	}
	if s.n > 2 {
		lists = append(lists, []int{s.n - 1, 1}, all[1:])
	}
	return lists
}

func ascending(n int) []int {
	ranks := make([]int, n)
	for r := range ranks {
		ranks[r] = r
	}
	return ranks
}

// checkSub checks and uses the group that g.Sub(list) gave to this rank.
func checkSub(ctx context.Context, g, sub group.Group, list, outermost []int) error {
	at := slices.Index(list, g.Rank())
	if at < 0 {
		if sub != nil {
			return fmt.Errorf("sub = %v on a rank that is not listed; want nil", sub)
		}
		return nil
	}
	if sub.Rank() != at || sub.Size() != len(list) || !slices.Equal(sub.Ranks(), outermost) {
		return fmt.Errorf("sub has rank %d of %d, ranks %v; want %d of %d, %v",
			sub.Rank(), sub.Size(), sub.Ranks(), at, len(list), outermost)
	}
	if err := checkAllGather(ctx, sub); err != nil {
		return err
	}
	return rooted(ctx, sub, len(list)-1, short)
}

// independent uses two groups of the same ranks at the same time; they must not
// take each other's calls.
func (s *suite) independent(e *env) {
	e.must("two groups", func(ctx context.Context, g group.Group) error {
		var subs [2]group.Group
		for i := range subs {
			sub, err := g.Sub(ctx, ascending(g.Size()))
			if err != nil {
				return err
			}
			subs[i] = sub
		}
		errs := make(chan error, 1)
		go func() { errs <- rooted(ctx, subs[0], 0, short) }()
		if err := checkAllGather(ctx, subs[1]); err != nil {
			return err
		}
		return <-errs
	})
}

// contained fails a call of a sub group and uses its parent.
func (s *suite) contained(e *env) {
	e.must("parent of a group with a failed call", func(ctx context.Context, g group.Group) error {
		sub, err := g.Sub(ctx, ascending(g.Size()))
		if err != nil {
			return err
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := sub.Barrier(ended); err == nil {
			return fmt.Errorf("barrier of contexts that have ended = nil; want an error")
		}
		if err := checkAllGather(ctx, g); err != nil {
			return err
		}
		return checkAllGather(ctx, sub)
	})
}
