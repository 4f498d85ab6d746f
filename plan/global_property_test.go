package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
)

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
	deep.Check(t, func(t *rapid.T) {
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

// checkFinals checks the properties of every global plan.
func checkFinals(t failer, plans, finals []*plan.SavePlan, md *meta.Metadata) {
	t.Helper()
	must.Do(t, md.Validate())
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
	deep.Check(t, func(t *rapid.T) {
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
		b := must.Get(plan.SavePlanCodec{}.Encode(p))(t)
		out = append(out, b)
	}
	return out
}

// Bytes are spread: the loads of ranks that hold the same tensors are equal within one
// element.
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
