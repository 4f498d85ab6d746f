package platform_test

import (
	"context"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// BenchmarkRedistribute gives a matrix of 256 MiB another layout, over TCP between 4 ranks. Its
// floor is one all-to-all in which each pair of ranks exchanges the same bytes. Both report the rate
// of the bytes that cross between ranks.
func BenchmarkRedistribute(b *testing.B) {
	const n, side = 4, 8192
	groups := make([]group.Group, n)
	for r, g := range tcptest.Meet(b, n, tcptest.ByFile(b, n)) {
		groups[r] = g
	}
	comms := commsOf(b, groups)
	whole := shard.Placed{Mesh: shard.Mesh{Shape: []int{n}}, Placements: []shard.Placement{shard.Replicate()}}
	for _, c := range []struct {
		name string
		to   shard.Layout
		each int64 // bytes from each rank to each rank
	}{
		{"rows to columns", shard.Columns(n), side * side * 4 / n / n},
		{"rows to replicas", whole, side * side * 4 / n},
	} {
		moves, dst, src := make([]platform.Move, n), make([]*tensor.Tensor, n), make([]*tensor.Tensor, n)
		splits := platform.Splits{}
		for range n {
			splits.In, splits.Out = append(splits.In, c.each), append(splits.Out, c.each)
		}
		for r := range n {
			moves[r] = platform.Move{Src: filledShard(b, shard.Rows(n), side, r), Dst: filledShard(b, c.to, side, r)}
			for _, t := range []**tensor.Tensor{&dst[r], &src[r]} {
				var err error
				if *t, err = tensor.Full(tensor.Uint8, []int64{n * c.each}, uint8(r)); err != nil {
					b.Fatal(err)
				}
			}
		}
		for name, run := range map[string]func(ctx context.Context, r int) error{
			"cairn": func(ctx context.Context, r int) error {
				_, err := platform.Redistribute(ctx, comms[r], moves[r])
				return err
			},
			"all to all": func(ctx context.Context, r int) error { return comms[r].AllToAll(ctx, dst[r], src[r], splits) },
		} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				b.SetBytes(n * (n - 1) * c.each)
				var wg sync.WaitGroup
				for r := range n {
					wg.Go(func() {
						for range b.N {
							if err := run(b.Context(), r); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// filledShard returns the part of a rank in a square matrix of float32.
func filledShard(b *testing.B, l shard.Layout, side int64, rank int) *shard.Tensor {
	b.Helper()
	shape, err := l.LocalShape([]int64{side, side}, rank)
	if err != nil {
		b.Fatal(err)
	}
	local, err := tensor.Full(tensor.Float32, shape, float32(rank))
	if err != nil {
		b.Fatal(err)
	}
	t, err := shard.New(l, []int64{side, side}, rank, local)
	if err != nil {
		b.Fatal(err)
	}
	return t
}
