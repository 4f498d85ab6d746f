package plan_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestPartialPlanNeedNotCoverTensors(t *testing.T) {
	item := func(offset, size int64) plan.WriteItem {
		info := &plan.Info{FQN: "x", Shape: []int64{4}}
		info.DType = tensor.Float32
		return plan.WriteItem{Info: info, Kind: plan.KindShard, Box: tensor.Box{Offsets: []int64{offset}, Sizes: []int64{size}}}
	}
	p := &plan.SavePlan{Items: []plan.WriteItem{item(2, 1), item(0, 1)}, Absent: []string{"y"}}
	if _, _, err := plan.Global([]*plan.SavePlan{p}, plan.LeastLoaded); !errors.Is(err, plan.ErrState) {
		t.Errorf("Global of some chunks = %v; want %v", err, plan.ErrState)
	}
	ps, md, err := plan.GlobalWith([]*plan.SavePlan{p}, plan.GlobalOptions{Partial: true})
	if err != nil || len(ps) != 1 || len(ps[0].Items) != 2 || len(md.Entries) != 1 || len(md.Entries[0].Tensor.Chunks) != 2 {
		t.Errorf("GlobalWith(Partial) = %v, %v, %v; want both chunks", ps, md, err)
	}
	p.Items = append(p.Items, item(1, 2))
	if _, _, err := plan.GlobalWith([]*plan.SavePlan{p}, plan.GlobalOptions{Partial: true}); !errors.Is(err, plan.ErrState) {
		t.Errorf("GlobalWith(Partial) with an overlap = %v; want %v", err, plan.ErrState)
	}
}
