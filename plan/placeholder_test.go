package plan_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// waiting returns a state of tensors without memory.
func waiting(t *testing.T) plan.State {
	t.Helper()
	hollow := func(shape ...int64) *tensor.Tensor {
		p := must.Get(tensor.Placeholder(tensor.Float32, shape))(t)
		return p
	}
	rows := shard.Placed{Mesh: shard.Mesh{Shape: []int{1}}, Placements: []shard.Placement{shard.Shard(0)}}
	s := must.Get(shard.New(rows, []int64{4, 2}, 0, hollow(4, 2)))(t)
	return plan.State{
		"a": hollow(), "in": map[string]any{"list": []any{1, hollow(1)}}, "s": s,
		"grad": plan.WithProperties(plan.Whole(hollow(2)), meta.Properties{RequiresGrad: true}),
	}
}

var waitingNames = []string{"a", "grad", "in.list.1", "s"}

func TestPlaceholdersAreFoundEverywhere(t *testing.T) {
	s := waiting(t)
	s["full"] = counting(t, 0, 2)
	slots := must.Get(plan.Flatten(s))(t)
	in := plan.State{}
	for name, slot := range slots {
		in[name] = slot
	}
	found, err := plan.Placeholders(in)
	if names := slices.Sorted(maps.Keys(found)); err != nil || !slices.Equal(names, waitingNames) {
		t.Errorf("Placeholders = %q, %v; want %q", names, err, waitingNames)
	}
}

// Neither a save nor a load begins with a tensor that has no memory, and both
// errors name all of them.
func TestPlaceholdersAreRefused(t *testing.T) {
	full := waiting(t)
	found := must.Get(plan.Placeholders(full))(t)
	for _, p := range found {
		must.Do(t, p.Materialize())
	}
	mem := save(t, full)
	var sp plan.DefaultSave
	var lp plan.DefaultLoad
	must.Do(t, errors.Join(sp.SetUp(plan.SaveSetup{State: waiting(t), Size: 1}), lp.SetUp(plan.LoadSetup{State: waiting(t), Metadata: mem.md})))
	_, errSave := sp.LocalPlan()
	_, errLoad := lp.LocalPlan()
	for _, err := range []error{errSave, errLoad} {
		if !errors.Is(err, tensor.ErrPlaceholder) || !errors.Is(err, plan.ErrState) {
			t.Errorf("LocalPlan = %v; want ErrState and ErrPlaceholder", err)
			continue
		}
		for _, name := range waitingNames {
			if !strings.Contains(err.Error(), `"`+name+`"`) {
				t.Errorf("%v; want %q in it", err, name)
			}
		}
	}
	must.Do(t, lp.SetUp(plan.LoadSetup{State: full, Metadata: mem.md}))
	if _, err := lp.LocalPlan(); err != nil {
		t.Errorf("materialized: %v", err)
	}
}

// A planner that gives the tensors memory itself gets items for them, and their dtypes and
// shapes.
func TestPlaceholdersAreAllowed(t *testing.T) {
	full := waiting(t)
	for _, p := range must.Get(plan.Placeholders(full))(t) {
		must.Do(t, p.Materialize())
	}
	lp := plan.DefaultLoad{AllowPlaceholders: true}
	must.Do(t, lp.SetUp(plan.LoadSetup{State: waiting(t), Metadata: save(t, full).md}))
	p := must.Get(lp.LocalPlan())(t)
	var names []string
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind == plan.KindBytes {
			continue
		}
		names = append(names, it.Dest.FQN)
		x, err := lp.ResolveTensor(it)
		if err != nil || !x.IsPlaceholder() || x.DType() != tensor.Float32 || !slices.Equal(x.Shape(), it.Lengths) {
			t.Errorf("ResolveTensor of %v = %v, %v; want a placeholder of %v", it.Dest, x, err, it.Lengths)
		}
	}
	if slices.Sort(names); !slices.Equal(names, waitingNames) {
		t.Errorf("the plan reads %q; want %q", names, waitingNames)
	}
}
