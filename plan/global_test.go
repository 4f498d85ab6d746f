package plan_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// item returns an item of float32 elements; bytes without a box.
func item(fqn string, shape []int64, b tensor.Box) plan.WriteItem {
	info := &plan.Info{FQN: fqn, Shape: shape}
	info.DType = tensor.Float32
	return plan.WriteItem{Info: info, Kind: plan.KindShard, Box: b}
}

func bytesItem(fqn string, size int64) plan.WriteItem {
	return plan.WriteItem{Info: &plan.Info{FQN: fqn, Codec: "raw"}, Kind: plan.KindBytes, Size: size}
}

// replica is a whole tensor that several ranks hold.
func replica(fqn string, elements int64) plan.WriteItem {
	return item(fqn, []int64{elements}, span(0, elements))
}

func planOf(items ...plan.WriteItem) *plan.SavePlan { return &plan.SavePlan{Items: items} }

func TestOwnerRules(t *testing.T) {
	for name, c := range map[string]struct {
		plans  []*plan.SavePlan
		least  []string
		lowest []string
	}{
		"an item of one rank stays there": {
			[]*plan.SavePlan{planOf(item("x", []int64{4}, span(0, 2))), planOf(item("x", []int64{4}, span(2, 2)))},
			[]string{"x: chunk 0 [0]+[2]: rank 0", "x: chunk 1 [2]+[2]: rank 1"},
			[]string{"x: chunk 0 [0]+[2]: rank 0", "x: chunk 1 [2]+[2]: rank 1"},
		},
		"a tie goes to the lowest rank": {
			[]*plan.SavePlan{planOf(), planOf(replica("x", 2)), planOf(replica("x", 2))},
			[]string{"x: chunk 0 [0]+[2]: rank 1"},
			[]string{"x: chunk 0 [0]+[2]: rank 1"},
		},
		"a rank's own items count first": {
			[]*plan.SavePlan{planOf(replica("a", 1), replica("z", 9)), planOf(replica("a", 1))},
			[]string{"a: chunk 0 [0]+[1]: rank 1", "z: chunk 0 [0]+[9]: rank 0"},
			[]string{"a: chunk 0 [0]+[1]: rank 0", "z: chunk 0 [0]+[9]: rank 0"},
		},
		"the largest first": {
			[]*plan.SavePlan{
				planOf(replica("a", 3), replica("b", 4), replica("c", 6)), planOf(replica("a", 3), replica("b", 4), replica("c", 6)),
			},
			[]string{"a: chunk 0 [0]+[3]: rank 1", "b: chunk 0 [0]+[4]: rank 1", "c: chunk 0 [0]+[6]: rank 0"},
			[]string{"a: chunk 0 [0]+[3]: rank 0", "b: chunk 0 [0]+[4]: rank 0", "c: chunk 0 [0]+[6]: rank 0"},
		},
		"values are shared too, and weigh their bytes": {
			[]*plan.SavePlan{planOf(bytesItem("a", 8), replica("x", 1)), planOf(bytesItem("a", 8), replica("x", 1))},
			[]string{"a: rank 0", "x: chunk 0 [0]+[1]: rank 1"},
			[]string{"a: rank 0", "x: chunk 0 [0]+[1]: rank 0"},
		},
		"an empty item weighs one, so that empty items spread": {
			[]*plan.SavePlan{planOf(bytesItem("a", 0), bytesItem("b", 0)), planOf(bytesItem("a", 0), bytesItem("b", 0))},
			[]string{"a: rank 0", "b: rank 1"},
			[]string{"a: rank 0", "b: rank 0"},
		},
		"one rank gives an item twice": {
			[]*plan.SavePlan{planOf(replica("first", 1)), planOf(bytesItem("a", 1), bytesItem("a", 1), replica("x", 2), replica("x", 2))},
			[]string{"a: rank 1", "first: chunk 0 [0]+[1]: rank 0", "x: chunk 0 [0]+[2]: rank 1"},
			[]string{"a: rank 1", "first: chunk 0 [0]+[1]: rank 0", "x: chunk 0 [0]+[2]: rank 1"},
		},
		"a whole tensor here, a replicated one there": {
			[]*plan.SavePlan{planOf(replica("x", 2)), localPlan(t, new(plan.DefaultSave), plan.State{"y": 1}), planOf(replica("x", 2))},
			[]string{"x: chunk 0 [0]+[2]: rank 0", "y: rank 1"},
			[]string{"x: chunk 0 [0]+[2]: rank 0", "y: rank 1"},
		},
		"chunks are numbered by their owners": {
			[]*plan.SavePlan{
				planOf(item("x", []int64{4}, span(2, 2))), planOf(item("x", []int64{4}, span(0, 2)), item("x", []int64{4}, span(2, 2))),
			},
			[]string{"x: chunk 0 [2]+[2]: rank 0", "x: chunk 1 [0]+[2]: rank 1"},
			[]string{"x: chunk 0 [2]+[2]: rank 0", "x: chunk 1 [0]+[2]: rank 1"},
		},
		"shared chunks of one size go in the order of their first holders": {
			[]*plan.SavePlan{
				planOf(item("x", []int64{4}, span(2, 2)), item("x", []int64{4}, span(0, 2))),
				planOf(item("x", []int64{4}, span(0, 2)), item("x", []int64{4}, span(2, 2))),
			},
			[]string{"x: chunk 0 [2]+[2]: rank 0", "x: chunk 1 [0]+[2]: rank 1"},
			[]string{"x: chunk 0 [2]+[2]: rank 0", "x: chunk 1 [0]+[2]: rank 0"},
		},
		"an empty chunk gives way to one at the same place": {
			[]*plan.SavePlan{
				planOf(item("x", []int64{4}, span(0, 0)), item("y", []int64{2, 2}, box([]int64{0, 0}, []int64{2, 0}))),
				planOf(item("x", []int64{4}, span(0, 4)), item("y", []int64{2, 2}, box([]int64{0, 0}, []int64{0, 2}))),
				planOf(item("y", []int64{2, 2}, box([]int64{0, 0}, []int64{2, 2})), item("x", []int64{4}, span(4, 0))),
			},
			[]string{"x: chunk 0 [0]+[4]: rank 1", "x: chunk 1 [4]+[0]: rank 2", "y: chunk 0 [0 0]+[2 2]: rank 2"},
			[]string{"x: chunk 0 [0]+[4]: rank 1", "x: chunk 1 [4]+[0]: rank 2", "y: chunk 0 [0 0]+[2 2]: rank 2"},
		},
		"of empty chunks at one place one stays": {
			[]*plan.SavePlan{planOf(item("x", []int64{0, 4}, box([]int64{0, 0}, []int64{0, 4})), item("x", []int64{0, 4}, box([]int64{0, 0}, []int64{0, 2})))},
			[]string{"x: chunk 0 [0 0]+[0 2]: rank 0"},
			[]string{"x: chunk 0 [0 0]+[0 2]: rank 0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for rule, want := range map[plan.OwnerRule][]string{plan.LeastLoaded: c.least, plan.LowestRank: c.lowest} {
				finals, _, err := plan.Global(c.plans, rule)
				if err != nil {
					t.Fatal(err)
				}
				if len(finals) != len(c.plans) {
					t.Errorf("%d plans; want one for each rank", len(finals))
				}
				if d := cmp.Diff(want, lines(finals)); d != "" {
					t.Errorf("%v: -want +got\n%s", rule, d)
				}
			}
		})
	}
}

func TestGlobalKeepsDataOfPlans(t *testing.T) {
	p := planOf(replica("b", 1), replica("a", 1))
	p.PlannerData, p.StorageData, p.Fingerprint, p.Absent = []byte("1"), []byte("s"), plan.Fingerprint{7}, []string{"a"}
	p.Values = []plan.ValueHash{{FQN: "v", Hash: 1}}
	finals, md, err := plan.Global([]*plan.SavePlan{p, planOf()}, plan.LeastLoaded)
	if err != nil {
		t.Fatal(err)
	}
	got := finals[0]
	if string(got.PlannerData) != "1" || string(got.StorageData) != "s" || got.Fingerprint != p.Fingerprint || got.Absent != nil || got.Values != nil {
		t.Errorf("final plan = %+v; want the local one's data", got)
	}
	if d := cmp.Diff([]string{"b", "a"}, names(got)); d != "" {
		t.Errorf("the items' order: -want +got\n%s", d)
	}
	if d := cmp.Diff([]string{"a", "b"}, md.Names()); d != "" || len(finals[1].Items) != 0 {
		t.Errorf("the names: -want +got\n%s", d)
	}
}

func TestGlobalWithoutItems(t *testing.T) {
	for _, plans := range [][]*plan.SavePlan{nil, {planOf()}, {planOf(), planOf()}} {
		finals, md, err := plan.Global(plans, plan.LeastLoaded)
		if err != nil || len(finals) != len(plans) || len(md.Entries) != 0 {
			t.Errorf("Global of %d empty plans = %v, %v, %v", len(plans), finals, md, err)
		}
	}
}

func TestGlobalReportsPhases(t *testing.T) {
	var phases []string
	_, _, err := plan.GlobalWith([]*plan.SavePlan{planOf(replica("a", 1))}, plan.GlobalOptions{Observe: func(phase string, _ time.Duration) {
		phases = append(phases, phase)
	}})
	if d := cmp.Diff([]string{"dedup", "validate", "global"}, phases); d != "" || err != nil {
		t.Errorf("phases, %v: -want +got\n%s", err, d)
	}
}

// changed returns an item with another description.
func changed(it plan.WriteItem, change func(in *plan.Info)) plan.WriteItem {
	it.Info = it.Info.Clone()
	change(it.Info)
	return it
}

func TestGlobalReportsEveryProblem(t *testing.T) {
	x := replica("x", 4)
	shape := []int64{4}
	for name, c := range map[string]struct {
		plans []*plan.SavePlan
		want  []string
	}{
		"another dtype": {
			[]*plan.SavePlan{planOf(x), planOf(changed(x, func(in *plan.Info) { in.DType = tensor.Float16 }))},
			[]string{`"x": disagree: rank 0 has a tensor of float32 [4], rank 1 has a tensor of float16 [4]`},
		},
		"another shape": {
			[]*plan.SavePlan{planOf(), planOf(x), planOf(replica("x", 5))},
			[]string{`"x": disagree: rank 1 has a tensor of float32 [4], rank 2 has a tensor of float32 [5]`},
		},
		"a tensor and a value": {
			[]*plan.SavePlan{planOf(x), planOf(bytesItem("x", 4))},
			[]string{`"x": disagree: rank 0 has a tensor of float32 [4], rank 1 has a value (raw)`},
		},
		"a value and a tensor": {
			[]*plan.SavePlan{planOf(bytesItem("x", 4)), planOf(x)},
			[]string{`"x": disagree: rank 0 has a value (raw), rank 1 has a tensor of float32 [4]`},
		},
		"a tensor and a value of one description": {
			[]*plan.SavePlan{planOf(x), planOf(plan.WriteItem{Info: x.Info, Kind: plan.KindBytes})},
			[]string{`"x": disagree: rank 0 has a tensor of float32 [4], rank 1 has a value ()`},
		},
		"another codec": {
			[]*plan.SavePlan{planOf(bytesItem("v", 4)), planOf(changed(bytesItem("v", 4), func(in *plan.Info) { in.Codec = "json" }))},
			[]string{`"v": disagree: rank 0 has a value (raw), rank 1 has a value (json)`},
		},
		"another path": {
			[]*plan.SavePlan{planOf(x), planOf(changed(x, func(in *plan.Info) { in.Path = at("m", 0) }))},
			[]string{`"x": disagree: rank 0 has a tensor of float32 [4], rank 1 has a tensor of float32 [4] at [m 0]`},
		},
		"other properties": {
			[]*plan.SavePlan{planOf(x), planOf(changed(x, func(in *plan.Info) { in.RequiresGrad = true }))},
			[]string{`"x": disagree: rank 0 has a tensor of float32 [4], rank 1 has a tensor of float32 [4] with requires_grad=true memory_format="" layout="" pin_memory=false`},
		},
		"each other description once": {
			[]*plan.SavePlan{planOf(x), planOf(replica("x", 5)), planOf(replica("x", 5)), planOf(replica("x", 6)), planOf(x)},
			[]string{
				`"x": disagree: rank 0 has a tensor of float32 [4], rank 1 has a tensor of float32 [5]`,
				`"x": disagree: rank 0 has a tensor of float32 [4], rank 3 has a tensor of float32 [6]`,
			},
		},
		"a missing part":  {[]*plan.SavePlan{planOf(item("x", shape, span(0, 2)))}, []string{`"x": volume: the chunks hold 2 of 4 elements`}},
		"an overlap":      {[]*plan.SavePlan{planOf(item("x", shape, span(0, 3))), planOf(item("x", shape, span(2, 2)))}, []string{`"x": overlap: chunks [0]+[3] and [2]+[2]`}},
		"a box outside":   {[]*plan.SavePlan{planOf(item("x", shape, span(0, 4)), item("x", shape, span(4, 1)))}, []string{`"x": bounds: invalid shape: box [4]+[1] leaves [4] in dimension 0`}},
		"a negative dim":  {[]*plan.SavePlan{planOf(item("x", []int64{-1}, span(0, 0)))}, []string{`"x": invalid: invalid shape: negative dimension in [-1]`}},
		"no dtype":        {[]*plan.SavePlan{planOf(changed(x, func(in *plan.Info) { in.DType = 0 }))}, []string{`"x": invalid: unsupported dtype`}},
		"no name":         {[]*plan.SavePlan{planOf(replica("", 4))}, []string{`"": invalid: invalid metadata: a name has 1 to 4096 bytes`}},
		"no name, either": {[]*plan.SavePlan{planOf(bytesItem("\xff", 4))}, []string{`"\xff": invalid: invalid metadata: name "\xff" is not UTF-8`}},
		"everything at once, in order": {
			[]*plan.SavePlan{
				planOf(x, item("d", shape, span(0, 2)), item("b", shape, span(0, 3)), replica("ok", 1)),
				planOf(replica("x", 5), item("b", shape, span(2, 1)), item("b", shape, span(9, 1))),
				{Absent: []string{"gone", "x"}}, {Absent: []string{"gone"}},
			},
			[]string{
				`"b": bounds: `, `"b": overlap: chunks [0]+[3] and [2]+[1]`, `"d": volume: the chunks hold 2 of 4 elements`,
				`"gone": volume: no rank holds any part of it`, `"x": disagree: `,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			finals, md, err := plan.Global(c.plans, plan.LeastLoaded)
			ps, ok := errors.AsType[plan.Problems](err)
			if !ok || !errors.Is(err, plan.ErrState) || finals != nil || md != nil {
				t.Fatalf("Global = %v, %v, %v; want Problems alone", finals, md, err)
			}
			texts := strings.Split(err.Error(), "; ")[1:]
			if len(texts) != len(c.want) || len(ps) != len(c.want) {
				t.Fatalf("Global = %v; want %d problems", err, len(c.want))
			}
			for i, want := range c.want {
				if !strings.HasPrefix(texts[i], want) {
					t.Errorf("problem %d = %s; want %s", i, texts[i], want)
				}
			}
		})
	}
}

func TestManyProblemsAreCut(t *testing.T) {
	var plans []*plan.SavePlan
	for i := range int64(50) {
		plans = append(plans, planOf(replica("x", 4+i)))
	}
	_, _, err := plan.Global(plans, plan.LeastLoaded)
	if ps, _ := errors.AsType[plan.Problems](err); len(ps) != 10 {
		t.Errorf("%d descriptions of one name are reported; want 10", len(ps))
	}
	p := planOf()
	for i := range 30 {
		p.Items = append(p.Items, item(fmt.Sprintf("k%02d", i), []int64{4}, span(0, 2)))
	}
	_, _, err = plan.Global([]*plan.SavePlan{p}, plan.LeastLoaded)
	if text := fmt.Sprint(err); !strings.Contains(text, `"k19"`) || strings.Contains(text, `"k20"`) || !strings.HasSuffix(text, "; and 10 more") {
		t.Errorf("Global = %v; want twenty problems and ten more", err)
	}
}

func TestGlobalRefusesInvalidPlans(t *testing.T) {
	for name, c := range map[string]struct {
		p  *plan.SavePlan
		is error
	}{
		"no plan":              {nil, plan.ErrProtocol},
		"an unchanged one":     {&plan.SavePlan{Unchanged: true}, plan.ErrStale},
		"an undescribed item":  {planOf(plan.WriteItem{Kind: plan.KindTensor}), plan.ErrProtocol},
		"an item of no kind":   {planOf(plan.WriteItem{Info: &plan.Info{FQN: "a"}}), plan.ErrProtocol},
		"an item of some kind": {planOf(plan.WriteItem{Info: &plan.Info{FQN: "a"}, Kind: 9}), plan.ErrProtocol},
		"a negative size":      {planOf(bytesItem("a", -1)), plan.ErrProtocol},
	} {
		_, _, err := plan.Global([]*plan.SavePlan{planOf(replica("x", 1)), c.p}, plan.LeastLoaded)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("%s: Global = %v; want %v about rank 1", name, err, c.is)
		}
	}
}
