package collective_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// media are groups to measure on.
var media = map[string]func(testing.TB, int, *collective.Options) []*collective.Comm{"inproc": comms, "tcp": sockets}

// measure runs a call on tensors of size bytes over and over.
func measure(b *testing.B, size int64, d tensor.DType, call func(ctx context.Context, c *collective.Comm, x *tensor.Tensor) error) {
	for medium, open := range media {
		for _, n := range []int{2, 4} {
			b.Run(fmt.Sprintf("%s/ranks=%d", medium, n), func(b *testing.B) {
				cs := open(b, n, nil)
				xs := make([]*tensor.Tensor, n)
				for r := range xs {
					xs[r] = zeros(b, d, size/int64(d.Size()))
				}
				b.SetBytes(size)
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for r, c := range cs {
					wg.Go(func() {
						for range b.N {
							if err := call(b.Context(), c, xs[r]); err != nil {
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

func BenchmarkAllReduce(b *testing.B) {
	for _, size := range []int64{64, 8 << 10, 64 << 10, 1 << 20, 64 << 20} {
		for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			b.Run(fmt.Sprintf("%v/%d", d, size), func(b *testing.B) {
				measure(b, size, d, func(ctx context.Context, c *collective.Comm, x *tensor.Tensor) error {
					return c.AllReduce(ctx, x, collective.Sum)
				})
			})
		}
	}
}

func BenchmarkBroadcast(b *testing.B) {
	for _, size := range []int64{64, 64 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			measure(b, size, tensor.Float32, func(ctx context.Context, c *collective.Comm, x *tensor.Tensor) error {
				return c.Broadcast(ctx, x, 0)
			})
		})
	}
}

func BenchmarkAllGather(b *testing.B) {
	measure(b, 16<<20, tensor.Float32, func(ctx context.Context, c *collective.Comm, x *tensor.Tensor) error {
		part := must.Value(x.Slice(0, 0, x.NumElements()/int64(c.Size()), 1))
		return c.AllGather(ctx, x, part.Clone())
	})
}

func BenchmarkReduceScatter(b *testing.B) {
	measure(b, 16<<20, tensor.Float32, func(ctx context.Context, c *collective.Comm, x *tensor.Tensor) error {
		part := must.Value(tensor.New(x.DType(), []int64{x.NumElements() / int64(c.Size())}))
		return c.ReduceScatter(ctx, part, x, collective.Sum)
	})
}

// BenchmarkAlgorithms measures the limit between a tree and a ring.
func BenchmarkAlgorithms(b *testing.B) {
	for _, n := range []int{2, 4, 8, 16} {
		for size := int64(1 << 10); size <= 1<<20; size *= 4 {
			for name, o := range map[string]*collective.Options{"tree": {Tree: 1 << 30}, "ring": {Tree: -1}} {
				b.Run(fmt.Sprintf("ranks=%d/bytes=%d/%s", n, size, name), func(b *testing.B) {
					cs := sockets(b, n, o)
					b.ResetTimer()
					parallel(n, func(r int) error {
						x := zeros(b, tensor.Float32, size/4)
						for range b.N {
							if err := cs[r].AllReduce(b.Context(), x, collective.Sum); err != nil {
								b.Error(err)
								return err
							}
						}
						return nil
					})
				})
			}
		}
	}
}
