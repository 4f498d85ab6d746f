package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
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

// replica is an item of so many elements that each of its holders has whole.
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
		"what nobody else has stays": {
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
		"what is empty weighs one, so that it spreads": {
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

func TestGlobalKeepsWhatPlansCarry(t *testing.T) {
	p := planOf(replica("b", 1), replica("a", 1))
	p.PlannerData, p.StorageData, p.Fingerprint, p.Absent = []byte("1"), []byte("s"), plan.Fingerprint{7}, []string{"a"}
	finals, md, err := plan.Global([]*plan.SavePlan{p, planOf()}, plan.LeastLoaded)
	if err != nil {
		t.Fatal(err)
	}
	got := finals[0]
	if string(got.PlannerData) != "1" || string(got.StorageData) != "s" || got.Fingerprint != p.Fingerprint || got.Absent != nil {
		t.Errorf("final plan = %+v; want the local one's data", got)
	}
	if d := cmp.Diff([]string{"b", "a"}, names(got)); d != "" {
		t.Errorf("the items' order: -want +got\n%s", d)
	}
	if d := cmp.Diff([]string{"a", "b"}, md.Names()); d != "" || len(finals[1].Items) != 0 {
		t.Errorf("the names: -want +got\n%s", d)
	}
}

func TestGlobalOfNothing(t *testing.T) {
	for _, plans := range [][]*plan.SavePlan{nil, {planOf()}, {planOf(), planOf()}} {
		finals, md, err := plan.Global(plans, plan.LeastLoaded)
		if err != nil || len(finals) != len(plans) || len(md.Entries) != 0 {
			t.Errorf("Global of %d empty plans = %v, %v, %v", len(plans), finals, md, err)
		}
	}
}

func TestGlobalTellsItsPhases(t *testing.T) {
	var phases []string
	_, _, err := plan.GlobalObserved([]*plan.SavePlan{planOf(replica("a", 1))}, plan.LeastLoaded, func(phase string, _ time.Duration) {
		phases = append(phases, phase)
	})
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
			[]string{`"x": disagree: rank 0 says a tensor of float32 [4], rank 1 a tensor of float16 [4]`},
		},
		"another shape": {
			[]*plan.SavePlan{planOf(), planOf(x), planOf(replica("x", 5))},
			[]string{`"x": disagree: rank 1 says a tensor of float32 [4], rank 2 a tensor of float32 [5]`},
		},
		"a tensor and a value": {
			[]*plan.SavePlan{planOf(x), planOf(bytesItem("x", 4))},
			[]string{`"x": disagree: rank 0 says a tensor of float32 [4], rank 1 a value (raw)`},
		},
		"a value and a tensor": {
			[]*plan.SavePlan{planOf(bytesItem("x", 4)), planOf(x)},
			[]string{`"x": disagree: rank 0 says a value (raw), rank 1 a tensor of float32 [4]`},
		},
		"another codec": {
			[]*plan.SavePlan{planOf(bytesItem("v", 4)), planOf(changed(bytesItem("v", 4), func(in *plan.Info) { in.Codec = "json" }))},
			[]string{`"v": disagree: rank 0 says a value (raw), rank 1 a value (json)`},
		},
		"another path": {
			[]*plan.SavePlan{planOf(x), planOf(changed(x, func(in *plan.Info) { in.Path = at("m", 0) }))},
			[]string{`"x": disagree: rank 0 says a tensor of float32 [4], rank 1 a tensor of float32 [4] at [m 0]`},
		},
		"other properties": {
			[]*plan.SavePlan{planOf(x), planOf(changed(x, func(in *plan.Info) { in.RequiresGrad = true }))},
			[]string{`"x": disagree: rank 0 says a tensor of float32 [4], rank 1 a tensor of float32 [4] with requires_grad=true memory_format="" layout="" pin_memory=false`},
		},
		"each other description once": {
			[]*plan.SavePlan{planOf(x), planOf(replica("x", 5)), planOf(replica("x", 5)), planOf(replica("x", 6)), planOf(x)},
			[]string{
				`"x": disagree: rank 0 says a tensor of float32 [4], rank 1 a tensor of float32 [5]`,
				`"x": disagree: rank 0 says a tensor of float32 [4], rank 3 a tensor of float32 [6]`,
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

func TestGlobalRefusesPlansThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		p  *plan.SavePlan
		is error
	}{
		"no plan":              {nil, plan.ErrState},
		"an unchanged one":     {&plan.SavePlan{Unchanged: true}, plan.ErrStale},
		"an undescribed item":  {planOf(plan.WriteItem{Kind: plan.KindTensor}), plan.ErrState},
		"an item of no kind":   {planOf(plan.WriteItem{Info: &plan.Info{FQN: "a"}}), plan.ErrState},
		"an item of some kind": {planOf(plan.WriteItem{Info: &plan.Info{FQN: "a"}, Kind: 9}), plan.ErrState},
		"a negative size":      {planOf(bytesItem("a", -1)), plan.ErrState},
	} {
		_, _, err := plan.Global([]*plan.SavePlan{planOf(replica("x", 1)), c.p}, plan.LeastLoaded)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("%s: Global = %v; want %v about rank 1", name, err, c.is)
		}
	}
}

// drawPlacements draws one placement for each dimension of a mesh.
func drawPlacements(t *rapid.T, mesh []int, dims int) []shard.Placement {
	out := make([]shard.Placement, len(mesh))
	for i := range out {
		if dims == 0 || rapid.Bool().Draw(t, "replicate") {
			continue
		}
		d := rapid.IntRange(0, dims-1).Draw(t, "dim")
		out[i] = rapid.SampledFrom([]shard.Placement{
			shard.Shard(d), shard.Shard(d), shard.StridedShard(d, rapid.IntRange(1, 3).Draw(t, "split")),
		}).Draw(t, "placement")
	}
	return out
}

// drawJob draws the states of a job: tensors in random layouts over a mesh of
// some of its ranks, plain tensors, values that some ranks have.
func drawJob(t *rapid.T) []plan.State {
	mesh := rapid.SliceOfN(rapid.IntRange(1, 3), 1, 3).Draw(t, "mesh")
	size := 1
	for _, n := range mesh {
		size *= n
	}
	states := make([]plan.State, size+rapid.IntRange(0, 2).Draw(t, "outside"))
	for r := range states {
		states[r] = plan.State{}
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "tensors") {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 6), 0, 3).Draw(t, "shape")
		l := placed(mesh, drawPlacements(t, mesh, len(shape))...)
		x := counting(t, 0, shape...)
		for r := range states {
			states[r][fmt.Sprintf("t%d", i)] = sharded(t, l, x, r)
		}
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "others") {
		x := counting(t, 0, rapid.SliceOfN(rapid.Int64Range(0, 6), 0, 2).Draw(t, "plain")...)
		v := any(x)
		if rapid.Bool().Draw(t, "value") {
			v = strings.Repeat("v", rapid.IntRange(0, 99).Draw(t, "size"))
		}
		for r := range states {
			if rapid.Bool().Draw(t, "held") {
				states[r][fmt.Sprintf("o%d", i)] = v
			}
		}
	}
	return states
}

// localPlans returns the plans of a job.
func localPlans(t failer, states []plan.State) []*plan.SavePlan {
	var out []*plan.SavePlan
	for _, s := range states {
		out = append(out, localPlan(t, new(plan.DefaultSave), s))
	}
	return out
}

func TestGlobalAgreesWithTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := drawJob(t)
		plans := localPlans(t, states)
		rule := rapid.SampledFrom([]plan.OwnerRule{plan.LeastLoaded, plan.LowestRank}).Draw(t, "rule")
		finals, md, err := plan.Global(plans, rule)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(reference(plans, rule), lines(finals)); d != "" {
			t.Fatalf("%v: -reference +got\n%s", rule, d)
		}
		checkFinals(t, plans, finals, md)

		// The same input once more, made anew, gives the same.
		again, md2, err := plan.Global(localPlans(t, states), rule)
		if d := cmp.Diff(lines(finals), lines(again)) + cmp.Diff(md, md2); d != "" || err != nil {
			t.Fatalf("planned again, %v: -first +second\n%s", err, d)
		}
	})
}

// checkFinals checks what holds of every global plan.
func checkFinals(t failer, plans, finals []*plan.SavePlan, md *meta.Metadata) {
	t.Helper()
	if err := md.Validate(); err != nil {
		t.Fatal(err)
	}
	written := map[string]int{}
	for r, p := range finals {
		next := 0
		for i := range p.Items {
			it := &p.Items[i]
			e, ok := md.Find(it.FQN())
			if !ok {
				t.Fatalf("rank %d writes %v, which the metadata lacks", r, it.Index())
			}
			if e.Tensor != nil && !e.Tensor.Chunks[it.Hint].Equal(it.Box) {
				t.Fatalf("rank %d: the hint of %v leads to %v", r, it.Index(), e.Tensor.Chunks[it.Hint])
			}
			written[it.FQN()]++
			// A rank's items are some of its own, in their order.
			for next < len(plans[r].Items) && (plans[r].Items[next].FQN() != it.FQN() || !plans[r].Items[next].Box.Equal(it.Box)) {
				next++
			}
			if next == len(plans[r].Items) {
				t.Fatalf("rank %d writes %v out of order, or it is not its own", r, it.Index())
			}
		}
	}
	for _, e := range md.Entries {
		want := 1
		if e.Tensor != nil {
			want = len(e.Tensor.Chunks)
		}
		if written[e.FQN] != want {
			t.Fatalf("%q: %d pieces are written; want %d", e.FQN, written[e.FQN], want)
		}
	}
}

// Plans that went through the codec share descriptions, others do not. That must
// make no difference, nor may planning change its input.
func TestGlobalDoesNotDependOnSharing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plans := localPlans(t, drawJob(t))
		before, codec := encodeAll(t, plans), plan.NewSavePlanCodec()
		decoded := make([]*plan.SavePlan, len(plans))
		for r, b := range before {
			var err error
			if decoded[r], err = codec.Decode(b); err != nil {
				t.Fatal(err)
			}
		}
		a, mdA, errA := plan.Global(plans, plan.LeastLoaded)
		b, mdB, errB := plan.Global(decoded, plan.LeastLoaded)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if d := cmp.Diff(lines(a), lines(b)) + cmp.Diff(mdA, mdB); d != "" {
			t.Fatalf("-alone +shared\n%s", d)
		}
		if !slices.EqualFunc(before, encodeAll(t, plans), slices.Equal) {
			t.Fatal("Global changed its input")
		}
	})
}

func encodeAll(t failer, plans []*plan.SavePlan) [][]byte {
	var out [][]byte
	for _, p := range plans {
		b, err := plan.SavePlanCodec{}.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// Bytes are spread: no rank writes more than what it alone has, or the mean of
// what is shared and one item, above the least loaded.
func TestReplicasAreBalanced(t *testing.T) {
	const ranks = 8
	var items []plan.WriteItem
	for i := range int64(100) {
		items = append(items, replica(fmt.Sprint("t", i), 1+i*i%37))
	}
	plans := make([]*plan.SavePlan, ranks)
	for r := range plans {
		plans[r] = planOf(items...)
	}
	finals, _, err := plan.Global(plans, plan.LeastLoaded)
	if err != nil {
		t.Fatal(err)
	}
	var loads []int64
	for _, p := range finals {
		loads = append(loads, p.NumBytes())
	}
	if slices.Max(loads)-slices.Min(loads) > 4 {
		t.Errorf("loads = %v; want them within one element", loads)
	}
}
