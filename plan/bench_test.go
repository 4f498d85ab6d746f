package plan_test

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
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

// BenchmarkLocalLoadPlan measures the planning of each rank of a load: 1,024 ranks saved a
// tensor's rows, 768 load them.
func BenchmarkLocalLoadPlan(b *testing.B) {
	const saved, ranks, tensors = 1024, 768, 1000
	_, md, err := plan.Global(benchPlans(b, saved, tensors), plan.LeastLoaded)
	if err != nil {
		b.Fatal(err)
	}
	state := plan.State{}
	for _, e := range md.Entries {
		x := must.Get(shard.Empty(rows(ranks), tensor.Float32, e.Tensor.Shape, 300))(b)
		state[e.FQN] = x
	}
	b.ReportAllocs()
	for b.Loop() {
		d := new(plan.DefaultLoad)
		if err := d.SetUp(plan.LoadSetup{State: state, Metadata: md}); err != nil {
			b.Fatal(err)
		}
		if _, err := d.LocalPlan(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheckTiling measures tilings that fall apart along planes, and one
// that does not.
func BenchmarkCheckTiling(b *testing.B) {
	const n = 128
	var grid, strided []tensor.Box
	for r := range int64(n) {
		for c := range int64(n) {
			grid = append(grid, box([]int64{r, c}, []int64{1, 1}))
			strided = append(strided, box([]int64{c, r}, []int64{1, 1}))
		}
	}
	pinwheels := make([]tensor.Box, 0, 5*n)
	for i := range int64(n) { // along the diagonal, so that no plane has few boxes on either side
		for _, p := range [][4]int64{{0, 0, 1, 2}, {0, 2, 2, 1}, {2, 1, 1, 2}, {1, 0, 2, 1}, {1, 1, 1, 1}} {
			pinwheels = append(pinwheels, box([]int64{3*i + p[0], 3*i + p[1]}, p[2:]))
		}
	}
	for name, c := range map[string]struct {
		shape []int64
		boxes []tensor.Box
	}{"grid": {[]int64{n, n}, grid}, "columns": {[]int64{n, n}, strided}, "pinwheels": {[]int64{3 * n, 3 * n}, pinwheels}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				plan.CheckCoverage(c.shape, c.boxes)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(c.boxes)), "ns/box")
		})
	}
}
