package platform_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/platform"
)

// A platform that only has AllGather still serves all of package group's steps,
// and smaller groups.
func TestCommOfABarePlatform(t *testing.T) {
	err := inproc.Run(t.Context(), 4, func(ctx context.Context, world group.Group) error {
		p := newBare(world)
		g, err := platform.Comm(p, p.World())
		if err != nil {
			return err
		}
		got, err := group.ReduceScatter(ctx, g, "double", group.JSON[int](), group.JSON[int](),
			func(context.Context) (int, error) { return g.Rank(), nil },
			func(_ context.Context, all []int) ([]int, error) {
				for i := range all {
					all[i] *= 2
				}
				return all, nil
			})
		if err != nil || got != 2*g.Rank() {
			return fmt.Errorf("ReduceScatter = %d, %w", got, err)
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		all, err := g.AllGather(ctx, []byte{byte(g.Rank())})
		if err != nil || len(all) != 4 || all[3][0] != 3 {
			return fmt.Errorf("AllGather = %v, %w", all, err)
		}
		return checkSub(ctx, g)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkSub(ctx context.Context, g group.Group) error {
	sub, err := g.Sub(ctx, []int{1, 3})
	if err != nil {
		return err
	}
	if member := g.Rank()%2 == 1; (sub != nil) != member {
		return fmt.Errorf("Sub on rank %d = %v", g.Rank(), sub)
	} else if member {
		if b, err := sub.Broadcast(ctx, 1, []byte{byte(g.Rank())}); err != nil || b[0] != 3 || !slices.Equal(sub.Ranks(), []int{1, 3}) {
			return fmt.Errorf("Broadcast in %v = %v, %w", sub.Ranks(), b, err)
		}
	}
	if _, err := g.Sub(ctx, []int{3, 1}); !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("Sub of ranks that descend = %v; want ErrUnsupported", err)
	}
	lists := [][]int{{0, 9}, {0, 1}, {0, 1}, {0, 1}}
	if _, err := g.Sub(ctx, lists[g.Rank()]); !errors.Is(err, group.ErrInvalid) || !slices.Equal(group.Ranks(err), []int{0}) {
		return fmt.Errorf("Sub of a rank that is not there, on rank 0 = %v; want ErrInvalid on all", err)
	}
	if _, err := g.Sub(ctx, []int{4}); !errors.Is(err, group.ErrInvalid) {
		return fmt.Errorf("Sub of a rank that is not there = %v; want ErrInvalid", err)
	}
	if _, err := g.Sub(ctx, nil); !errors.Is(err, group.ErrInvalid) {
		return fmt.Errorf("Sub of no ranks = %v; want ErrInvalid", err)
	}
	return nil
}

func TestCommOfNoGroup(t *testing.T) {
	if g, err := platform.Comm(newBare(nil), nil); !errors.Is(err, group.ErrInvalid) || g != nil {
		t.Errorf("Comm of no group = %v, %v; want ErrInvalid", g, err)
	}
}
