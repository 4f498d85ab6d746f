package plan_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
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

// BenchmarkGlobal measures the plan that rank 0 makes of the local plans of all ranks, by phases.
// BenchmarkEncodeIndex of storage/native measures the index of as many chunks.
func BenchmarkGlobal(b *testing.B) {
	for _, ranks := range []int{1024, 8192} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			plans, phases := benchPlans(b, ranks, 1000), map[string]time.Duration{}
			observe := func(phase string, took time.Duration) { phases[phase] += took }
			for b.Loop() {
				if _, _, err := plan.GlobalWith(plans, plan.GlobalOptions{Observe: observe}); err != nil {
					b.Fatal(err)
				}
			}

			for phase, took := range phases {
				b.ReportMetric(took.Seconds()*1000/float64(b.N), phase+"-ms")
			}
			reportPeak(b)
		})
	}
}

// reportPeak reports the largest memory of this process, on Linux.
func reportPeak(b *testing.B) {
	b.Helper()
	status, _ := os.ReadFile("/proc/self/status") // other systems have no such file
	if _, rest, ok := strings.Cut(string(status), "VmHWM:"); ok {
		var kib float64
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(kib/1000*1.024, "peak-MB")
	}
}

// BenchmarkGlobalUnchanged measures a save with the same plan as the one before: the work of
// one rank for itself, and the work of rank 0 for all ranks.
func BenchmarkGlobalUnchanged(b *testing.B) {
	const ranks, tensors, last = 1024, 1000, 1023
	options := func(rank int) string { return fmt.Sprint(rank) }
	coordinator, own := new(plan.Cache), new(plan.Cache)
	plans, unchanged := make([]*plan.SavePlan, ranks), make([]*plan.SavePlan, ranks)
	for r := range plans {
		cache := new(plan.Cache)
		if r == last {
			cache = own
		}
		plans[r] = must.Get(cache.Local(benchPlan(r, ranks, tensors), options(r)))(b)
		unchanged[r] = &plan.SavePlan{Unchanged: true, Fingerprint: plans[r].Fingerprint}
	}
	finals, _, err := coordinator.Global(plans, func(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
		return plan.GlobalWith(ps, plan.GlobalOptions{})
	})
	if err != nil {
		b.Fatal(err)
	}
	must.Get(own.Finish(finals[last]))(b)
	again := benchPlan(last, ranks, tensors)

	for b.Loop() {
		unchanged[last] = must.Get(own.Local(again, options(last)))(b)
		answers, _, err := coordinator.Global(unchanged, func([]*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
			return nil, nil, errors.New("rank 0 made the plan again")
		})
		if err != nil {
			b.Fatal(err)
		}
		must.Get(own.Finish(answers[last]))(b)
	}
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
