package inproc_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

// bench runs fn b.N times on each of n ranks that live through all of them.
func bench(b *testing.B, n int, fn func(ctx context.Context, g group.Group, v []byte) error) {
	v := make([]byte, 1<<10)
	b.SetBytes(int64(n * len(v)))
	b.ReportAllocs()
	err := inproc.Run(b.Context(), n, func(ctx context.Context, g group.Group) error {
		for range b.N {
			if err := fn(ctx, g, v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkGather1KB(b *testing.B) {
	for _, n := range []int{64, 1024} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			bench(b, n, func(ctx context.Context, g group.Group, v []byte) error {
				_, err := g.Gather(ctx, 0, v)
				return err
			})
		})
	}
}

func BenchmarkReduceScatter1KB(b *testing.B) {
	for _, n := range []int{64, 1024} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			bench(b, n, func(ctx context.Context, g group.Group, v []byte) error {
				_, err := group.Assign(ctx, g, "plan", group.Bytes{}, group.Bytes{},
					func(context.Context) ([]byte, error) { return v, nil },
					func(_ context.Context, vs [][]byte) ([][]byte, error) { return vs, nil })
				return err
			})
		})
	}
}
