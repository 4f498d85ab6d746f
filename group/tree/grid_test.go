package tree_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
)

// Every size in every arity makes every call, with values that travel with the
// call, that are held for it, and with both.
func TestAllShapes(t *testing.T) {
	for n := 1; n <= 17; n++ {
		for arity := 2; arity <= 8; arity++ {
			synctest.Test(t, func(t *testing.T) {
				nodes := new(tree.Memory).Nodes(n, tree.Options{Arity: arity})
				var wg sync.WaitGroup
				for r, node := range nodes {
					wg.Go(func() {
						defer node.Close()
						if err := mixed(t.Context(), node.World()); err != nil {
							t.Errorf("rank %d of %d, arity %d: %v", r, n, arity, err)
						}
						if err := node.World().Barrier(t.Context()); err != nil {
							t.Errorf("rank %d of %d, arity %d: %v", r, n, arity, err)
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// mixed lets rank 1 bring a large value.
func mixed(ctx context.Context, g group.Group) error {
	value := func(r int) []byte {
		if r == 1 {
			return bytes.Repeat([]byte{byte(r)}, 70_000)
		}
		return []byte{byte(r)}
	}
	all, err := g.AllGather(ctx, value(g.Rank()))
	if err != nil {
		return err
	}
	root := g.Size() / 2
	gathered, err := g.Gather(ctx, root, value(g.Rank()))
	if err != nil {
		return err
	}
	part, err := g.Scatter(ctx, root, all)
	if err != nil {
		return err
	}
	b, err := g.Broadcast(ctx, root, value(g.Rank()))
	if err != nil {
		return err
	}
	if !bytes.Equal(part, value(g.Rank())) || !bytes.Equal(b, value(root)) || (gathered != nil) != (g.Rank() == root) {
		return fmt.Errorf("scatter = %d bytes, broadcast = %d bytes, gather = %d values", len(part), len(b), len(gathered))
	}
	for r, v := range all {
		if !bytes.Equal(v, value(r)) || gathered != nil && !bytes.Equal(gathered[r], v) {
			return fmt.Errorf("all-gather of rank %d = %d bytes", r, len(v))
		}
	}
	return nil
}
