package plan_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
)

// With EveryHolder each rank keeps all that it holds, once, and the checkpoint is
// described as if the lowest rank had written it.
func TestEveryHolderWritesItsCopy(t *testing.T) {
	plans := []*plan.SavePlan{
		planOf(replica("a", 3), item("x", []int64{4}, span(0, 2)), bytesItem("v", 5)),
		planOf(bytesItem("v", 5), item("x", []int64{4}, span(2, 2)), item("x", []int64{4}, span(0, 2)), replica("a", 3), replica("a", 3)),
		planOf(),
	}
	got, md, err := plan.Global(plans, plan.EveryHolder)
	if err != nil {
		t.Fatal(err)
	}
	_, want, err := plan.Global(plans, plan.LowestRank)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, md); d != "" {
		t.Errorf("metadata (-lowest +every):\n%s", d)
	}
	var written [][]string
	for _, p := range got {
		items := []string{}
		for i := range p.Items {
			items = append(items, fmt.Sprintf("%v, chunk %d", p.Items[i].Index(), p.Items[i].Hint))
		}
		written = append(written, items)
	}
	if d := cmp.Diff([][]string{
		{`"a" at [0], chunk 0`, `"x" at [0], chunk 0`, `"v", chunk 0`},
		{`"v", chunk 0`, `"x" at [2], chunk 1`, `"x" at [0], chunk 0`, `"a" at [0], chunk 0`},
		{},
	}, written); d != "" {
		t.Errorf("plans (-want +got):\n%s", d)
	}
}

// Two items of one rank are not copies on several ranks.
func TestReplicatedItemsAreMarked(t *testing.T) {
	plans := []*plan.SavePlan{
		planOf(replica("twice", 3), item("x", []int64{4}, span(0, 2)), bytesItem("v", 5), replica("own", 1), replica("own", 1)),
		planOf(item("x", []int64{4}, span(0, 2)), item("x", []int64{4}, span(2, 2)), replica("twice", 3), bytesItem("v", 5)),
		planOf(bytesItem("w", 5), replica("twice", 3)),
	}
	want := map[string]bool{`"twice" at [0]`: true, `"x" at [0]`: true, `"v"`: true, `"own" at [0]`: false, `"x" at [2]`: false, `"w"`: false}
	for _, rule := range []plan.OwnerRule{plan.LeastLoaded, plan.LowestRank, plan.EveryHolder} {
		finals, _, err := plan.Global(plans, rule)
		must.Do(t, err)
		got := map[string]bool{}
		for r, p := range finals {
			for i := range p.Items {
				at := p.Items[i].Index().String()
				got[at] = p.Items[i].Replicated
				if got[at] != want[at] {
					t.Errorf("%v: Replicated of %s in the plan of rank %d is %v; want %v", rule, at, r, got[at], want[at])
				}
			}
		}
		if len(got) != len(want) {
			t.Errorf("%v: the plans have %v; want %v", rule, got, want)
		}
	}
}

// differing returns the final plans and the metadata of two ranks that hold
// different values, and as many other tensors as would make the second rank the
// owner by load.
func differing(t *testing.T, d *plan.DefaultSave) ([]*plan.SavePlan, int64, error) {
	t.Helper()
	local := []*plan.SavePlan{
		plan.WithValueHashes(localPlan(t, d, plan.State{"big": counting(t, 0, 64), "v": "of rank 0", "codec": []byte("x")})),
		plan.WithValueHashes(localPlan(t, d, plan.State{"v": "the value of rank 1", "codec": 7})),
	}
	if err := plan.CheckValues(local); err != nil {
		return nil, 0, err
	}
	out, md, err := d.GlobalPlan(local)
	if err != nil {
		return nil, 0, err
	}
	e, _ := md.Find("v")
	return out, e.Bytes.Size, nil
}

func TestValuesMayDifferTakesLowestRank(t *testing.T) {
	d := &plan.DefaultSave{ValuesMayDiffer: true}
	out, size, err := differing(t, d)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"big", "codec", "v"}; !cmp.Equal(names(out[0]), want) || len(out[1].Items) != 0 || size != int64(len(`"of rank 0"`)) {
		t.Errorf("rank 0 writes %q, rank 1 %q, of %d bytes; want %q, none, %d", names(out[0]), names(out[1]), size, want, len(`"of rank 0"`))
	}
	if _, _, err := differing(t, new(plan.DefaultSave)); err == nil {
		t.Error("values that differ were accepted by default")
	}
	if d.PlanOptions() == new(plan.DefaultSave).PlanOptions() || new(plan.DefaultSave).PlanOptions() == (&plan.DefaultSave{Owner: plan.EveryHolder}).PlanOptions() {
		t.Error("plans under different options may be taken for each other")
	}
}

func TestOwnerRulesAsText(t *testing.T) {
	for _, want := range []plan.OwnerRule{plan.LeastLoaded, plan.LowestRank, plan.EveryHolder} {
		var got plan.OwnerRule
		if err := got.UnmarshalText(must.Get(want.MarshalText())(t)); err != nil || got != want {
			t.Errorf("the text of %v stands for %v, %v", want, got, err)
		}
	}
	got := plan.EveryHolder
	if err := got.UnmarshalText(nil); err != nil || got != plan.LeastLoaded {
		t.Errorf("no text stands for %v, %v; want the default", got, err)
	}
	if err := got.UnmarshalText([]byte("me")); err == nil {
		t.Error("an unknown rule is accepted")
	}
}
