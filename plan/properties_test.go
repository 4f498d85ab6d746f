package plan_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Properties are part of the plan; the dtype is the tensor's own. A tensor with properties is
// loaded like any other tensor.
func TestPropertiesOfAState(t *testing.T) {
	with := meta.Properties{DType: tensor.Int8, RequiresGrad: true, MemoryFormat: "channels_last"}
	x := counting(t, 3, 4)
	half := boxed([]int64{4}, span(0, 2), span(2, 2))
	state := plan.State{"x": plan.WithProperties(plan.Whole(x), with), "plain": plan.Whole(x), "half": plan.WithProperties(half, with)}
	p := localPlan(t, new(plan.DefaultSave), state)
	for i := range p.Items {
		it := &p.Items[i]
		want := meta.Properties{DType: tensor.Float32}
		switch it.FQN() {
		case "x":
			want.RequiresGrad, want.MemoryFormat = true, "channels_last"
		case "half":
			want = meta.Properties{DType: tensor.Uint8, RequiresGrad: true, MemoryFormat: "channels_last"}
		}
		if it.Info.Properties != want || (it.Kind == plan.KindTensor) != (it.FQN() != "half") {
			t.Errorf("%q is a %v of %+v; want %+v", it.FQN(), it.Kind, it.Info.Properties, want)
		}
	}

	delete(state, "half")
	got := zeros(t, tensor.Float32, 4)
	save(t, state).mustLoad(t, plan.State{"x": plan.WithProperties(plan.Whole(got), meta.Properties{})})
	if !tensor.Equal(got, x) {
		t.Error("the tensor inside was not filled")
	}
}

func TestUnknownPropertiesAreRefused(t *testing.T) {
	x := plan.Whole(counting(t, 0, 2))
	for name, v := range map[string]any{
		"an unknown format": plan.WithProperties(x, meta.Properties{MemoryFormat: "blocked"}),
		"a sparse layout":   plan.WithProperties(x, meta.Properties{Layout: "sparse_csr"}),
		"no tensor":         plan.WithProperties(nil, meta.Properties{}), "a nil tensor": plan.WithProperties(plan.Whole(nil), meta.Properties{}),
	} {
		d := new(plan.DefaultSave)
		must.Do(t, d.SetUp(plan.SaveSetup{State: plan.State{"x": v}}))
		if _, err := d.LocalPlan(); !errors.Is(err, plan.ErrState) {
			t.Errorf("%s: LocalPlan = %v; want ErrState", name, err)
		}
	}
}

func TestItemKeys(t *testing.T) {
	same := [][]plan.WriteItem{
		{replica("a", 3), {Info: &plan.Info{FQN: "a", Shape: []int64{3}}, Kind: plan.KindTensor, Hint: 2, Box: span(0, 3)}},
		{item("a", []int64{3}, span(0, 2))},
		{item("a", []int64{3}, span(2, 1))},
		{bytesItem("a", 3), bytesItem("a", 5)},
		{bytesItem("b", 3)},
	}
	keys := map[plan.ItemKey]int{}
	for n, items := range same {
		for i := range items {
			if had, ok := keys[items[i].Key()]; ok && had != n {
				t.Errorf("items of groups %d and %d have one key", had, n)
			}
			keys[items[i].Key()] = n
		}
	}
	if len(keys) != len(same) {
		t.Errorf("%d keys; want %d", len(keys), len(same))
	}
}
