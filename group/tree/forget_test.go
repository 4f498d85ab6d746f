package tree

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
)

// each runs fn on every node at once.
func each(t *testing.T, nodes []*Node, fn func(ctx context.Context, g *Group) error) {
	t.Helper()
	var wg sync.WaitGroup
	for r, n := range nodes {
		wg.Go(func() {
			if err := fn(t.Context(), n.World()); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
}

// Groups that are forgotten leave only their names behind, whatever still comes
// for them, and the others go on.
func TestForget(t *testing.T) {
	const rounds = 20
	synctest.Test(t, func(t *testing.T) {
		nodes := new(Memory).Nodes(5, Options{Arity: 2})
		for round := range rounds {
			each(t, nodes, func(ctx context.Context, g *Group) error {
				made, err := g.Sub(ctx, []int{4, 1, 0, 3, 2})
				if err != nil {
					return err
				}
				sub := made.(*Group)
				if sub.Rank() == round%5 { // the others learn of it in a call
					sub.Forget()
					sub.Forget()
				} else if _, err := sub.AllGather(ctx, make([]byte, 2*maxInline)); !errors.Is(err, group.ErrGone) {
					t.Errorf("call of a group that rank %d has forgotten = %v; want %v", round%5, err, group.ErrGone)
				}
				sub.Forget()
				if err := sub.Barrier(ctx); !errors.Is(err, group.ErrGone) {
					t.Errorf("call of a group that is forgotten = %v; want %v", err, group.ErrGone)
				}
				return g.Barrier(ctx)
			})
		}
		synctest.Wait()
		for r, n := range nodes {
			if len(n.teams) != 1 || len(n.early) != 0 || len(n.forgotten) != rounds {
				t.Errorf("rank %d holds %d groups, frames for %d, %d names; want 1, 0, %d",
					r, len(n.teams), len(n.early), len(n.forgotten), rounds)
			}
		}
		for _, n := range nodes {
			n.Close()
		}
	})
}
