package plan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func TestLocalPlanHasEveryRanksItems(t *testing.T) {
	x := counting(t, 0, 8, 4)
	for rank := range 2 {
		p := localPlan(t, new(plan.DefaultSave), plan.State{
			"tensor": counting(t, 0, 10), "value": []int{1, 2, 3}, "st": sharded(t, rows(2), x, rank),
		})
		if len(p.Items) != 3 {
			t.Fatalf("rank %d: %d items; want 3 on any rank", rank, len(p.Items))
		}
		st, whole, v := p.Items[0], p.Items[1], p.Items[2]
		if want := box([]int64{4 * int64(rank), 0}, []int64{4, 4}); st.Kind != plan.KindShard || !st.Box.Equal(want) || st.NumBytes() != 64 {
			t.Errorf("rank %d: st is a %v of %v; want a shard of %v", rank, st.Kind, st.Box, want)
		}
		if whole.Kind != plan.KindTensor || !whole.Box.Equal(span(0, 10)) || whole.NumBytes() != 40 {
			t.Errorf("rank %d: tensor is a %v of %v; want a tensor of all of it", rank, whole.Kind, whole.Box)
		}
		if v.Kind != plan.KindBytes || v.Index().Offset != nil || v.Box.Dims() != 0 || v.NumBytes() != v.Size {
			t.Errorf("rank %d: value is a %v at %v; want bytes without an offset", rank, v.Kind, v.Index())
		}
		if p.NumBytes() != 64+40+v.Size {
			t.Errorf("NumBytes = %d", p.NumBytes())
		}
	}
}

func TestIndexOfAScalarHasAnOffset(t *testing.T) {
	p := localPlan(t, new(plan.DefaultSave), plan.State{"x": counting(t, 1)})
	if i := p.Items[0].Index(); i.Offset == nil || len(i.Offset) != 0 {
		t.Errorf("Index = %#v; want an empty offset that is not nil", i)
	}
	if i := (&plan.WriteItem{Info: &plan.Info{}, Kind: plan.KindTensor}).Index(); i.Offset == nil {
		t.Error("Index of a 0-d box without slices has no offset")
	}
}

func TestKindNames(t *testing.T) {
	if got := fmt.Sprint(plan.KindTensor, plan.KindShard, plan.KindBytes, plan.Kind(9)); got != "tensor shard bytes unknown" {
		t.Errorf("kinds = %s", got)
	}
}

func TestRanksOutsideTheMeshHoldNothing(t *testing.T) {
	l := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}, Ranks: []int{1, 2}}, Placements: []shard.Placement{shard.Shard(0)}}
	x := counting(t, 0, 4)
	states := make([]plan.State, 4)
	for r := range states {
		states[r] = plan.State{"x": sharded(t, l, x, r), "n": r}
	}
	p := localPlan(t, new(plan.DefaultSave), states[0])
	if d := cmp.Diff([]string{"n"}, names(p)); d != "" || !cmp.Equal(p.Absent, []string{"x"}) {
		t.Errorf("rank 0, outside of the mesh: items %v, absent %v", names(p), p.Absent)
	}
	got := zeros(t, tensor.Float32, 4)
	save(t, states...).mustLoad(t, plan.State{"x": got})
	if !tensor.Equal(got, x) {
		t.Error("the tensor did not come back whole")
	}
	// A tensor of which no rank holds anything must not vanish silently.
	_, _, err := plan.Global([]*plan.SavePlan{p, localPlan(t, new(plan.DefaultSave), states[3])}, plan.LeastLoaded)
	want := plan.Problems{{FQN: "x", Kind: plan.ProblemVolume, Text: "no rank holds any part of it"}}
	if d := cmp.Diff(error(want), err); d != "" {
		t.Errorf("Global: -want +got\n%s", d)
	}
}

func TestOwnShardedTypes(t *testing.T) {
	x := counting(t, 0, 6, 4)
	corner, rest, below := box([]int64{0, 0}, []int64{3, 2}), box([]int64{0, 2}, []int64{3, 2}), box([]int64{3, 0}, []int64{3, 4})
	mem := save(t, plan.State{"x": cut(t, x, below, corner)}, plan.State{"x": cut(t, x, rest)})
	if n := len(mem.chunks); n != 3 {
		t.Errorf("%d chunks; want 3", n)
	}
	zero := zeros(t, tensor.Float32, 6, 4)
	got := cut(t, zero, box([]int64{1, 1}, []int64{4, 2}), box([]int64{0, 3}, []int64{6, 1}))
	mem.mustLoad(t, plan.State{"x": got})
	for i, b := range got.boxes {
		if want, _ := x.Narrow(b); !tensor.Equal(got.parts[i], want) {
			t.Errorf("box %v holds other elements than were saved", b)
		}
	}
}

func TestLocalPlanRefuses(t *testing.T) {
	x := counting(t, 0, 4)
	for name, c := range map[string]struct {
		v    any
		is   error
		text string
	}{
		"a nil tensor":             {(*tensor.Tensor)(nil), plan.ErrState, "nil *tensor.Tensor"},
		"a nil sharded tensor":     {(*shard.Tensor)(nil), plan.ErrState, "nil *shard.Tensor"},
		"a zero tensor":            {new(tensor.Tensor), tensor.ErrDType, "dtype"},
		"a box that leaves":        {&ramp{shape: []int64{4}, boxes: []tensor.Box{span(2, 3)}}, tensor.ErrShape, "box [2]+[3]"},
		"a box of other dims":      {&ramp{shape: []int64{4}, boxes: []tensor.Box{{}}}, tensor.ErrShape, "box"},
		"a shape that cannot be":   {&ramp{shape: []int64{-4}}, tensor.ErrShape, "negative"},
		"a dtype that is not":      {&ramp{shape: []int64{4}, dtype: 99}, tensor.ErrDType, "dtype"},
		"a value without encoding": {make(chan int), value.ErrValue, "chan int"},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(plan.DefaultSave)
			must.Do(t, d.SetUp(plan.SaveSetup{State: plan.State{"a": x, "v": c.v}}))
			_, err := d.LocalPlan()
			if !errors.Is(err, plan.ErrState) || !errors.Is(err, c.is) || !strings.HasPrefix(err.Error(), `"v": `) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("LocalPlan = %v; want ErrState and %v about v, with %q", err, c.is, c.text)
			}
		})
	}
}

func TestLocalPlanReportsAllProblems(t *testing.T) {
	s := plan.State{}
	for i := range 25 {
		s[fmt.Sprintf("k%02d", i)] = make(chan int)
	}
	s["z"] = &ramp{shape: []int64{-1}}
	d := new(plan.DefaultSave)
	must.Do(t, d.SetUp(plan.SaveSetup{State: s}))
	_, err := d.LocalPlan()
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != 21 || !strings.HasPrefix(lines[19], `"k19"`) || lines[20] != "and 6 more" {
		t.Errorf("LocalPlan = %v; want twenty problems and six more", err)
	}
	if !errors.Is(err, tensor.ErrShape) {
		t.Error("the error wraps only what it spells out; want all")
	}
}

// Values are saved as they were when the plan was made, as often as asked.
func TestResolve(t *testing.T) {
	list := []int{1, 2}
	x := counting(t, 0, 6)
	d := new(plan.DefaultSave)
	p := localPlan(t, d, plan.State{"v": list, "x": x, "s": cut(t, x, span(0, 2), span(2, 4))})
	list[0] = 9
	for range 2 {
		got, err := d.Resolve(&p.Items[2])
		if err != nil || got.Tensor != nil || string(got.Bytes) != "[1,2]" {
			t.Errorf("Resolve(v) = %q, %v; want the list as it was", got.Bytes, err)
		}
		if got, err := d.Resolve(&p.Items[3]); err != nil || got.Tensor != x || got.Bytes != nil {
			t.Errorf("Resolve(x) = %v, %v; want the tensor itself", got, err)
		}
		got, err = d.Resolve(&p.Items[1])
		if want, _ := x.Narrow(span(2, 4)); err != nil || !tensor.Equal(got.Tensor, want) {
			t.Errorf("Resolve(s) = %v, %v; want its second box", got.Tensor, err)
		}
	}
	for name, it := range map[string]plan.WriteItem{
		"another name": {Info: &plan.Info{FQN: "y"}, Kind: plan.KindTensor},
		"another kind": {Info: &plan.Info{FQN: "x"}, Kind: plan.KindBytes},
		"another box":  {Info: &plan.Info{FQN: "s"}, Kind: plan.KindShard, Box: span(1, 1)},
	} {
		if _, err := d.Resolve(&it); !errors.Is(err, plan.ErrState) {
			t.Errorf("Resolve of %s: %v; want ErrState", name, err)
		}
	}
}

// The documented ways to extend the default planner: embed it, override one
// method.
type renaming struct{ plan.DefaultSave }

func (r *renaming) SetUp(s plan.SaveSetup) error {
	renamed := plan.State{}
	for k, v := range s.State {
		renamed["ema_"+k] = v
	}
	s.State = renamed
	return r.DefaultSave.SetUp(s)
}

type halving struct{ plan.DefaultSave }

func (h *halving) LocalPlan() (*plan.SavePlan, error) {
	p, err := h.DefaultSave.LocalPlan()
	if err != nil {
		return nil, err
	}
	q := *p
	q.Items = nil
	for _, it := range p.Items {
		it.Info = it.Info.Clone()
		it.Info.DType = tensor.BFloat16
		q.Items = append(q.Items, it)
	}
	return &q, nil
}

func (h *halving) Resolve(it *plan.WriteItem) (plan.Data, error) {
	d, err := h.DefaultSave.Resolve(it)
	if err != nil {
		return d, err
	}
	half, err := tensor.New(tensor.BFloat16, d.Tensor.Shape())
	if err != nil {
		return d, err
	}
	return plan.Data{Tensor: half}, tensor.Convert(half, d.Tensor, tensor.CastAny)
}

type noting struct {
	plan.DefaultSave
	note string
}

func (n *noting) LocalPlan() (*plan.SavePlan, error) {
	p, err := n.DefaultSave.LocalPlan()
	if err != nil {
		return nil, err
	}
	q := *p
	q.PlannerData, err = json.Marshal(n.note)
	return &q, err
}

func (n *noting) GlobalPlan(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	var all []json.RawMessage
	for _, p := range plans {
		all = append(all, p.PlannerData)
	}
	out, md, err := n.DefaultSave.GlobalPlan(plans)
	if err == nil {
		md.PlannerData, err = json.Marshal(all)
	}
	return out, md, err
}

func TestPlannersExtendByEmbedding(t *testing.T) {
	plans := func(ps ...plan.SavePlanner) (out []*plan.SavePlan) {
		for r, p := range ps {
			must.Do(t, p.SetUp(plan.SaveSetup{State: plan.State{"x": counting(t, 0, 4)}, Rank: r, Size: len(ps), Coordinator: r == 0}))
			local := must.Get(p.LocalPlan())(t)
			out = append(out, local)
		}
		return out
	}
	if got := names(plans(new(renaming))[0]); !cmp.Equal(got, []string{"ema_x"}) {
		t.Errorf("renamed: %v", got)
	}
	h := new(halving)
	it := plans(h)[0].Items[0]
	if d, err := h.Resolve(&it); err != nil || d.Tensor.DType() != tensor.BFloat16 || it.NumBytes() != 8 {
		t.Errorf("halved: %v of %d bytes, %v", d.Tensor, it.NumBytes(), err)
	}
	a, b := &noting{note: "a"}, &noting{note: "b"}
	_, md, err := a.GlobalPlan(plans(a, b))
	if err != nil || string(md.PlannerData) != `["a","b"]` {
		t.Errorf("noted: %s, %v", md.PlannerData, err)
	}
}

func TestPlanOptionsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range []*plan.DefaultSave{{}, {NoFlatten: true}, {Owner: plan.LowestRank}, {NoFlatten: true, Owner: plan.LowestRank}} {
		seen[d.PlanOptions()] = true
	}
	if len(seen) != 4 {
		t.Errorf("PlanOptions = %v; want four different ones", seen)
	}
}
