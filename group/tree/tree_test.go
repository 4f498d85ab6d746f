package tree_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/grouptest"
	"github.com/cairn-ckpt/cairn/group/tree"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes groups in memory, in trees of that arity.
func open(arity int) grouptest.OpenFunc {
	return func(t *testing.T, n int) []group.Group {
		nodes := new(tree.Memory).Nodes(n, tree.Options{Arity: arity})
		t.Cleanup(func() {
			for _, node := range nodes {
				node.Close()
			}
		})
		gs := make([]group.Group, n)
		for r, node := range nodes {
			gs[r] = node.World()
		}
		return gs
	}
}

func leave(g group.Group) { g.(*tree.Group).Leave(nil) }

func TestGroup(t *testing.T) {
	for arity, sizes := range map[int][]int{1: {3}, 2: {1, 2, 7}, 3: {11}, 8: {9}} {
		t.Run(fmt.Sprintf("arity %d", arity), func(t *testing.T) {
			grouptest.Run(t, open(arity), &grouptest.Options{Sizes: sizes, Leave: leave})
		})
	}
}
