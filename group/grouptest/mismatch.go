package grouptest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

func (s *suite) mismatch(t *testing.T) {
	cs := append(s.collectives(), collective{"sub of other ranks", func(ctx context.Context, g group.Group) error {
		_, err := g.Sub(ctx, []int{1, 0})
		return err
	}})
	for i, most := range cs {
		other := cs[(i+1)%len(cs)]
		s.test(t, fmt.Sprintf("%s and %s", most.name, other.name), func(e *env) {
			for odd := range s.n {
				s.differ(e, most.call, other.call, odd)
			}
		})
	}
	s.test(t, "gather to 0 and gather to 1", func(e *env) {
		s.differ(e, rootedCollectives(0)[0].call, rootedCollectives(1)[0].call, s.n-1)
	})
	s.test(t, "sub and sub of other ranks", func(e *env) {
		s.differ(e, cs[2].call, cs[len(cs)-1].call, 0)
	})
}

// differ lets one rank make another call than the rest.
func (s *suite) differ(e *env, most, other rankFunc, odd int) {
	e.Helper()
	errs := e.all(func(ctx context.Context, g group.Group) error {
		if g.Rank() == odd {
			return other(ctx, g)
		}
		return most(ctx, g)
	})
	ge := e.same(errs, group.ErrDisagree)
	if len(ge.Ranks) < 2 || !slices.Contains(ge.Ranks, odd) {
		e.Fatalf("error %q names %v; want rank %d and one that differs from it", ge, ge.Ranks, odd)
	}
	e.usable()
}

func (s *suite) invalid(t *testing.T) {
	for name, call := range map[string]rankFunc{
		"gather to a root out of range": func(ctx context.Context, g group.Group) error {
			_, err := g.Gather(ctx, g.Size(), nil)
			return err
		},
		"scatter from a negative root": func(ctx context.Context, g group.Group) error {
			_, err := g.Scatter(ctx, -1, nil)
			return err
		},
		"broadcast from a root out of range": func(ctx context.Context, g group.Group) error {
			_, err := g.Broadcast(ctx, g.Size()+5, nil)
			return err
		},
		"sub of no ranks":            sub(),
		"sub of a rank out of range": sub(s.n),
		"sub of a negative rank":     sub(-1),
		"sub of a rank listed twice": sub(0, 0),
	} {
		s.test(t, name, func(e *env) {
			e.same(e.all(call), group.ErrInvalid)
			e.usable()
		})
	}
	for _, n := range []int{0, s.n - 1, s.n + 1} {
		s.test(t, fmt.Sprintf("scatter of %d values", n), func(e *env) {
			root := s.n / 2
			errs := e.all(func(ctx context.Context, g group.Group) error {
				_, err := g.Scatter(ctx, root, make([][]byte, n))
				return err
			})
			e.blames(errs, []int{root}, group.ErrInvalid)
			e.usable()
		})
	}
}

func sub(ranks ...int) rankFunc {
	return func(ctx context.Context, g group.Group) error {
		_, err := g.Sub(ctx, ranks)
		return err
	}
}
