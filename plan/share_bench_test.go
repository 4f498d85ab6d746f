package plan_test

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// BenchmarkAssignReaders measures the coordinator's work for sharing: replicas, and a mesh of
// eight that shard and many that replicate.
func BenchmarkAssignReaders(b *testing.B) {
	const tensors = 1000
	for _, ranks := range []int{8, 256, 1000} {
		for _, ways := range []int64{1, 8} {
			b.Run(fmt.Sprintf("ranks=%d/tensors=%d/shards=%d", ranks, tensors, ways), func(b *testing.B) {
				md := &meta.Metadata{}
				states := make([]plan.State, ranks)
				for r := range states {
					states[r] = plan.State{}
				}
				for i := range tensors {
					name := fmt.Sprintf("model.layers.%04d.weight", i)
					shape := []int64{64, 1 << 18}
					described(md, name, shape, 0, true)
					for r := range states {
						n := 64 / ways
						states[r][name] = boxed(shape, tensor.Box{Offsets: []int64{int64(r) % ways * n, 0}, Sizes: []int64{n, 1 << 18}})
					}
				}
				plans := wants(b, md, states...)
				takes := all(ranks)
				b.ReportAllocs()
				for b.Loop() {
					plan.AssignReaders(md, plans, takes)
				}
			})
		}
	}
}
