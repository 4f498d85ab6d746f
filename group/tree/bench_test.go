package tree_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/group/tree"
)

// onTree runs fn b.N times on each of n ranks in memory.
func onTree(b *testing.B, n int, fn func(ctx context.Context, g *tree.Group) error) {
	nodes := new(tree.Memory).Nodes(n, tree.Options{})
	defer closeAll(nodes)
	var wg sync.WaitGroup
	round := func(times int) {
		for _, node := range nodes {
			wg.Go(func() {
				for range times {
					if err := fn(b.Context(), node.World()); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	round(1) // connects them
	b.ReportAllocs()
	b.ResetTimer()
	round(b.N)
	b.StopTimer()
}

func closeAll(nodes []*tree.Node) {
	var wg sync.WaitGroup
	for _, node := range nodes {
		wg.Go(func() { node.Close() })
	}
	wg.Wait()
}

func BenchmarkBarrier(b *testing.B) {
	for _, n := range []int{2, 8, 64, 10_000} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			onTree(b, n, func(ctx context.Context, g *tree.Group) error { return g.Barrier(ctx) })
		})
	}
}

// BenchmarkGatherScatter measures the collective calls of planning a save, with small plans.
func BenchmarkGatherScatter(b *testing.B) {
	for _, size := range []int{1 << 10, 80 << 10} {
		b.Run(fmt.Sprintf("ranks=10000/bytes=%d", size), func(b *testing.B) {
			v := make([]byte, size)
			onTree(b, 10_000, func(ctx context.Context, g *tree.Group) error {
				vs, err := g.Gather(ctx, 0, v)
				if err != nil {
					return err
				}
				_, err = g.Scatter(ctx, 0, vs)
				return err
			})
		})
	}
}

// BenchmarkLarge is values that take the tree in pieces.
func BenchmarkLarge(b *testing.B) {
	const n, size = 16, 4 << 20
	v := make([]byte, size)
	call := map[string]func(ctx context.Context, g *tree.Group) error{
		"gather":    func(ctx context.Context, g *tree.Group) error { _, err := g.Gather(ctx, 0, v); return err },
		"broadcast": func(ctx context.Context, g *tree.Group) error { _, err := g.Broadcast(ctx, 0, v); return err },
	}
	for _, op := range []string{"gather", "broadcast"} {
		b.Run(fmt.Sprintf("op=%s/ranks=%d/bytes=%d", op, n, size), func(b *testing.B) {
			b.SetBytes(n * size)
			onTree(b, n, call[op])
		})
	}
}

// BenchmarkNode measures the memory of an idle rank, in a tree of ten thousand.
func BenchmarkNode(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		before := inUse()
		nodes := new(tree.Memory).Nodes(n, tree.Options{})
		var wg sync.WaitGroup
		for _, node := range nodes {
			wg.Go(func() {
				if err := node.World().Barrier(b.Context()); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(inUse()-before)/n, "bytes/rank")
		closeAll(nodes)
	}
}

// inUse returns the bytes of heap and stacks.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
