package plan_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// benchPlans returns the local plans of a job as its coordinator has them after
// decoding: nine tensors in ten are sharded on dim 0 over all ranks, one in ten
// is replicated.
func benchPlans(b *testing.B, ranks, tensors int) []*plan.SavePlan {
	b.Helper()
	codec := plan.NewSavePlanCodec()
	plans := make([]*plan.SavePlan, ranks)
	for r := range plans {
		data, err := plan.SavePlanCodec{}.Encode(benchPlan(r, ranks, tensors))
		if err != nil {
			b.Fatal(err)
		}
		if plans[r], err = codec.Decode(data); err != nil {
			b.Fatal(err)
		}
	}
	return plans
}

// benchPlan returns the local plan of one rank.
func benchPlan(rank, ranks, tensors int) *plan.SavePlan {
	n := int64(ranks)
	p := &plan.SavePlan{Items: make([]plan.WriteItem, 0, tensors)}
	for t := range tensors {
		info := &plan.Info{FQN: fmt.Sprintf("model.layers.%d.weight", t)}
		info.DType = tensor.Float32
		it := plan.WriteItem{Info: info}
		if t%10 == 0 {
			info.Shape = []int64{n, 64}
			it.Kind, it.Box = plan.KindTensor, tensor.Whole(info.Shape)
		} else {
			info.Shape = []int64{4 * n, 64}
			it.Kind, it.Box = plan.KindShard, tensor.Box{Offsets: []int64{4 * int64(rank), 0}, Sizes: []int64{4, 64}}
		}
		p.Items = append(p.Items, it)
	}
	return p
}

var benchSizes = []struct{ ranks, tensors int }{{256, 1000}, {1024, 1000}, {8192, 1000}}

// BenchmarkGlobal measures the coordinator's planning, validation included.
func BenchmarkGlobal(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(fmt.Sprintf("ranks=%d/tensors=%d", s.ranks, s.tensors), func(b *testing.B) {
			plans := benchPlans(b, s.ranks, s.tensors)
			runtime.GC()
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := plan.Global(plans, plan.LeastLoaded); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*s.ranks*s.tensors), "ns/item")
		})
	}
}

// BenchmarkSavePlanCodec measures what a coordinator does for each rank's plan
// beside planning.
func BenchmarkSavePlanCodec(b *testing.B) {
	const ranks, tensors = 1024, 1000
	encoded := make([][]byte, ranks)
	var codec plan.SavePlanCodec
	for r := range encoded {
		var err error
		if encoded[r], err = codec.Encode(benchPlan(r, ranks, tensors)); err != nil {
			b.Fatal(err)
		}
	}
	plans := make([]*plan.SavePlan, ranks)
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			codec = plan.NewSavePlanCodec()
			for r := range encoded {
				var err error
				if plans[r], err = codec.Decode(encoded[r]); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for r := range plans {
				if _, err := codec.Encode(plans[r]); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
