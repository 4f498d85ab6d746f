package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// PlanOptions configure the planning problem.
type PlanOptions struct {
	Ranks, Tensors int
}

// PlanResult is the cost of planning on the coordinator.
type PlanResult struct {
	Ranks   int `json:"ranks"`
	Tensors int `json:"tensors"`
	Items   int `json:"items"`
	// Seconds is the sum of the coordinator's phases, from having all local plans
	// to having the bytes of the index.
	Seconds float64            `json:"seconds"`
	Phases  map[string]float64 `json:"phases"`
	// Outside is the work that Seconds leaves out: the ranks' own work, done
	// sequentially here, and the wire.
	Outside    map[string]float64 `json:"outside"`
	WireBytes  int                `json:"wire_bytes_per_rank"`
	IndexBytes int                `json:"index_bytes"`
	PeakRSS    int64              `json:"peak_rss_bytes"`
	// RepeatSeconds is the time of planning the same save again by fingerprint:
	// one rank's own work, the coordinator's work for all ranks, and the rank's
	// work again.
	RepeatSeconds float64 `json:"repeat_seconds"`
}

// Plan measures the global step of a save. Nine in ten tensors are sharded on dim
// 0 over all ranks, one in ten is replicated.
func Plan(ctx context.Context, o PlanOptions) (*PlanResult, error) {
	if o.Ranks < 1 || o.Tensors < 1 {
		return nil, fmt.Errorf("%d ranks, %d tensors: want at least one of each", o.Ranks, o.Tensors)
	}
	r := &PlanResult{
		Ranks: o.Ranks, Tensors: o.Tensors, Items: o.Ranks * o.Tensors,
		Phases: map[string]float64{}, Outside: map[string]float64{},
	}
	plans, err := r.gather(ctx, o)
	if err != nil {
		return nil, err
	}
	unchanged := make([]*plan.SavePlan, len(plans))
	for rank, p := range plans {
		unchanged[rank] = &plan.SavePlan{Unchanged: true, Fingerprint: p.Fingerprint}
	}
	runtime.GC()
	observe := func(phase string, took time.Duration) { r.Phases[phase] = took.Seconds() }
	coordinator := new(plan.Cache)
	finals, md, err := coordinator.Global(plans, func(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
		return plan.GlobalWith(ps, plan.GlobalOptions{Observe: observe})
	})
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.index(md, finals); err != nil {
		return nil, err
	}
	for _, s := range r.Phases {
		r.Seconds += s
	}
	r.PeakRSS = peakRSS()
	return r, r.repeat(o, coordinator, unchanged)
}

// localPlan returns the plan of one rank, like its planner.
func localPlan(rank int, o PlanOptions) *plan.SavePlan {
	p := &plan.SavePlan{Items: make([]plan.WriteItem, 0, o.Tensors)}
	n := int64(o.Ranks)
	for t := range o.Tensors {
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

// gather makes every rank's plan and encodes and decodes it, like a group.
func (r *PlanResult) gather(ctx context.Context, o PlanOptions) ([]*plan.SavePlan, error) {
	codec := plan.NewSavePlanCodec()
	plans := make([]*plan.SavePlan, o.Ranks)
	var local, encode, decode time.Duration
	for rank := range plans {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t0 := time.Now()
		p := localPlan(rank, o)
		t1 := time.Now()
		sent, err := new(plan.Cache).Local(p, options(rank, o))
		if err != nil {
			return nil, err
		}
		b, err := codec.Encode(sent)
		if err != nil {
			return nil, err
		}
		t2 := time.Now()
		if plans[rank], err = codec.Decode(b); err != nil {
			return nil, err
		}
		r.WireBytes = len(b)
		local, encode, decode = local+t1.Sub(t0), encode+t2.Sub(t1), decode+time.Since(t2)
	}
	r.Outside["local_plans"] = local.Seconds()
	r.Outside["fingerprint_and_encode"] = encode.Seconds()
	r.Outside["decode"] = decode.Seconds()
	return plans, nil
}

func options(rank int, o PlanOptions) string { return fmt.Sprint(rank, "/", o.Ranks) }

// index lays out the ranks' files, like the ranks, and encodes the index.
func (r *PlanResult) index(md *meta.Metadata, finals []*plan.SavePlan) error {
	start := time.Now()
	saveID := storage.NewSaveID(start, 0)
	md = &meta.Metadata{Entries: slices.Clone(md.Entries)} // the cache keeps the original
	for i := range md.Entries {
		t := *md.Entries[i].Tensor
		md.Entries[i].Tensor = &t
		t.Locs = make([]meta.Location, len(t.Chunks))
		n := native.Sums(t.Chunks[0].Sizes, t.DType.Size()) // all chunks have the same shape
		sums := make([]uint32, n*int64(len(t.Chunks)))
		for j := range t.Locs {
			t.Locs[j].Sums, sums = sums[:n:n], sums[n:]
		}
	}
	for rank, p := range finals {
		name := native.DataFileName(saveID, rank, 0)
		at := int64(4096)
		for i := range p.Items {
			it := &p.Items[i]
			e, _ := md.Find(it.FQN())
			loc := &e.Tensor.Locs[it.Hint]
			loc.File, loc.Offset, loc.Length = name, at, it.NumBytes()
			at += loc.Length
		}
	}
	r.Outside["layout"] = time.Since(start).Seconds()
	took, err := timed(func() error {
		b, err := native.EncodeIndex(md.Entries)
		r.IndexBytes = len(b)
		return err
	})
	r.Phases["index"] = took.Seconds()
	return err
}

// repeat plans the same save again: the ranks send unchanged plans. One rank's own
// work counts, because in a job all ranks do it in parallel.
func (r *PlanResult) repeat(o PlanOptions, coordinator *plan.Cache, unchanged []*plan.SavePlan) error {
	last, cache := o.Ranks-1, coordinator
	if last > 0 {
		cache = new(plan.Cache)
	}
	// The rank's first save fills its cache.
	own, err := cache.Local(localPlan(last, o), options(last, o))
	if err != nil {
		return err
	}
	if _, err := cache.Finish(own); err != nil {
		return err
	}
	again := localPlan(last, o)
	runtime.GC()
	took, err := timed(func() error {
		p, err := cache.Local(again, options(last, o))
		if err != nil {
			return err
		}
		if !p.Unchanged {
			return fmt.Errorf("the plan of rank %d changed without a reason", last)
		}
		unchanged[last] = p
		answers, _, err := coordinator.Global(unchanged, func([]*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
			return nil, nil, fmt.Errorf("the coordinator planned again without a reason")
		})
		if err != nil {
			return err
		}
		_, err = cache.Finish(answers[last])
		return err
	})
	r.RepeatSeconds = took.Seconds()
	return err
}
