package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestCacheSkipsUnchangedPlans(t *testing.T) {
	j := newJob(3)
	first, err := j.save(three()...)
	if err != nil || !j.planned || len(unchanged(j.sent)) != 0 {
		t.Fatalf("the first save: planned %v, unchanged %v, %v", j.planned, unchanged(j.sent), err)
	}
	want, md, err := global(three())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		again, err := j.save(three()...)
		if err != nil || j.planned {
			t.Fatalf("the same save again: planned %v, %v", j.planned, err)
		}
		if d := cmp.Diff([]int{0, 1, 2}, unchanged(j.sent)) + cmp.Diff([]int{0, 1, 2}, unchanged(j.answers)); d != "" {
			t.Errorf("the same save again: -want +got\n%s", d)
		}
		for r := range j.sent {
			if len(j.sent[r].Items)+len(j.answers[r].Items) != 0 {
				t.Errorf("rank %d sends and gets items", r)
			}
		}
		if d := cmp.Diff(lines(want), lines(again)) + cmp.Diff(lines(first), lines(again)) + cmp.Diff(md, j.md); d != "" {
			t.Errorf("the same save again: -want +got\n%s", d)
		}
	}
}

func TestCacheSendsOnlyChangedPlans(t *testing.T) {
	j := newJob(3)
	must.Get(j.save(three()...))(t)
	locals := three()
	locals[2].Items = append(locals[2].Items, replica("z", 9))
	finals, err := j.save(locals...)
	if err != nil || !j.planned {
		t.Fatalf("a changed save: planned %v, %v", j.planned, err)
	}
	if d := cmp.Diff([]int{0, 1}, unchanged(j.sent)) + cmp.Diff([]int{0, 1}, unchanged(j.answers)); d != "" {
		t.Errorf("rank 2 changed: -unchanged +got\n%s", d)
	}
	want, md, _ := global(locals)
	if d := cmp.Diff(lines(want), lines(finals)) + cmp.Diff(md, j.md); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	// Back to the first plan: only rank 2 speaks again.
	if finals, err = j.save(three()...); err != nil {
		t.Fatal(err)
	}
	want, _, _ = global(three())
	if d := cmp.Diff([]int{0, 1}, unchanged(j.sent)) + cmp.Diff(lines(want), lines(finals)); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// A change on one rank may change the final plan of another rank, which must then receive it.
func TestCacheSendsChangedFinalPlan(t *testing.T) {
	for name, c := range map[string]struct {
		items []plan.WriteItem // of rank 0, now
		told  []int
	}{
		"it gets an item that was another's": {append(three()[0].Items, replica("a", 99)), []int{0, 1}},
		"its chunk gets another number":      {append(three()[0].Items[1:], item("x", []int64{6}, span(0, 1)), item("x", []int64{6}, span(1, 1))), []int{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(3)
			must.Get(j.save(three()...))(t)
			locals := three()
			locals[0].Items = c.items
			finals := must.Get(j.save(locals...))(t)
			var told []int
			for r, a := range j.answers {
				if !a.Unchanged {
					told = append(told, r)
				}
			}
			if d := cmp.Diff([]int{1, 2}, unchanged(j.sent)) + cmp.Diff(c.told, told); d != "" {
				t.Errorf("sent unchanged and told: -want +got\n%s", d)
			}
			if want, _, _ := global(locals); !cmp.Equal(lines(want), lines(finals)) {
				t.Errorf("finals: -want +got\n%s", cmp.Diff(lines(want), lines(finals)))
			}
		})
	}
}

func TestFingerprintCoversPlan(t *testing.T) {
	for name, change := range map[string]func(j *job, locals []*plan.SavePlan){
		"a dtype": func(_ *job, l []*plan.SavePlan) {
			for _, p := range l[:2] {
				p.Items[1] = changed(p.Items[1], func(in *plan.Info) { in.DType = tensor.Int32 }) // as large as before
			}
		},
		"a shape": func(_ *job, l []*plan.SavePlan) {
			for _, p := range l[:2] {
				p.Items[1] = item("y", []int64{3, 1}, box([]int64{0, 0}, []int64{3, 1}))
			}
		},
		"a layout": func(_ *job, l []*plan.SavePlan) {
			l[0].Items[0].Box, l[1].Items[0].Box = span(2, 2), span(0, 2) // of the same shapes
		},
		"a path": func(_ *job, l []*plan.SavePlan) {
			l[2].Items[1] = changed(l[2].Items[1], func(in *plan.Info) { in.Path = at("v") })
		},
		"a property": func(_ *job, l []*plan.SavePlan) {
			for _, p := range l {
				p.Items[0] = changed(p.Items[0], func(in *plan.Info) { in.RequiresGrad = true })
			}
		},
		"a kind": func(_ *job, l []*plan.SavePlan) { l[0].Items[1].Kind = plan.KindTensor },
		"a codec": func(_ *job, l []*plan.SavePlan) {
			l[2].Items[1] = changed(l[2].Items[1], func(in *plan.Info) { in.Codec = "json" })
		},
		"a name":           func(_ *job, l []*plan.SavePlan) { l[2].Items[1] = bytesItem("w", 5) },
		"a name more":      func(_ *job, l []*plan.SavePlan) { l[2].Items = append(l[2].Items, bytesItem("w", 5)) },
		"a name less":      func(_ *job, l []*plan.SavePlan) { l[2].Items = l[2].Items[:1] },
		"the order":        func(_ *job, l []*plan.SavePlan) { slices.Reverse(l[0].Items) },
		"an absent name":   func(_ *job, l []*plan.SavePlan) { l[2].Absent = []string{"y"} },
		"the planner data": func(_ *job, l []*plan.SavePlan) { l[1].PlannerData = []byte("1") },
		"the storage data": func(_ *job, l []*plan.SavePlan) { l[1].StorageData = []byte("1") },
		"an option": func(j *job, _ []*plan.SavePlan) {
			j.options = func(r int) string { return fmt.Sprintf("T %d/3 lowest", r) }
		},
		"the planner":       func(j *job, _ []*plan.SavePlan) { j.options = func(r int) string { return fmt.Sprintf("U %d/3", r) } },
		"the rank's number": func(j *job, _ []*plan.SavePlan) { j.options = func(r int) string { return fmt.Sprintf("T %d/3", 2-r) } },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(3)
			must.Get(j.save(three()...))(t)
			locals := three()
			change(j, locals)
			finals, err := j.save(locals...)
			if err != nil || !j.planned || len(unchanged(j.sent)) == 3 {
				t.Errorf("changed %s: planned %v, unchanged %v, %v", name, j.planned, unchanged(j.sent), err)
			}
			if want, md, _ := global(locals); !cmp.Equal(lines(want), lines(finals)) || !cmp.Equal(md, j.md) {
				t.Errorf("changed %s: %v; want %v", name, lines(finals), lines(want))
			}
		})
	}
}

// The text of a number changes its length from save to save. That makes no new
// plan, but the sizes are the new ones everywhere.
func TestCacheSendsOnlyNewSizes(t *testing.T) {
	j := newJob(2)
	rank := func(r int, step, lr, own any) *plan.SavePlan {
		return localPlan(t, new(plan.DefaultSave), plan.State{
			"x": sharded(t, rows(2), counting(t, 0, 8), r), "step": step, "lr": lr, fmt.Sprint("own", r): own,
		})
	}
	first := must.Get(j.save(rank(0, 9, 0.5, "a"), rank(1, 9, 0.5, "a")))(t)
	kept := j.md
	finals, err := j.save(rank(0, 10, 0.5, "a"), rank(1, 10, 0.25, "abc"))
	if err != nil || j.planned || len(unchanged(j.sent)) != 2 || len(unchanged(j.answers)) != 2 {
		t.Fatalf("planned %v, unchanged %v and %v, %v", j.planned, unchanged(j.sent), unchanged(j.answers), err)
	}
	if d := cmp.Diff([]string{"step"}, names(j.sent[0])) + cmp.Diff([]string{"lr", "own1", "step"}, names(j.sent[1])); d != "" {
		t.Errorf("what was sent: -want +got\n%s", d)
	}
	if d := cmp.Diff(lines(first), lines(finals)); d != "" {
		t.Errorf("items by rank: -first +second\n%s", d)
	}
	locals := []*plan.SavePlan{rank(0, 10, 0.5, "a"), rank(1, 10, 0.25, "abc")}
	checkSizes(t, locals, finals, j.md)
	checkSizes(t, []*plan.SavePlan{rank(0, 9, 0.5, "a"), rank(1, 9, 0.5, "a")}, first, kept)

	// A rank that changes more, or is new, makes a new plan of the new sizes.
	locals[0].Items = append(locals[0].Items, replica("new", 3))
	if finals, err = j.save(locals...); err != nil || !j.planned || !cmp.Equal([]int{1}, unchanged(j.sent)) || len(j.sent[1].Items) != 0 {
		t.Fatalf("planned %v, unchanged %v, %v", j.planned, unchanged(j.sent), err)
	}
	checkSizes(t, locals, finals, j.md)
}

// checkSizes checks that final plans and metadata have the sizes of the local
// plans.
func checkSizes(t failer, locals, finals []*plan.SavePlan, md *meta.Metadata) {
	t.Helper()
	for r, p := range finals {
		for i := range p.Items {
			it := &p.Items[i]
			if it.Kind != plan.KindBytes {
				continue
			}
			at := slices.IndexFunc(locals[r].Items, func(l plan.WriteItem) bool { return l.FQN() == it.FQN() })
			e, _ := md.Find(it.FQN())
			if want := locals[r].Items[at].Size; it.Size != want || e.Bytes.Size != want {
				t.Fatalf("rank %d: %q has %d bytes in its plan and %d in the metadata; want %d", r, it.FQN(), it.Size, e.Bytes.Size, want)
			}
		}
	}
}

func TestCacheOtherWorldSize(t *testing.T) {
	j := newJob(3)
	must.Get(j.save(three()...))(t)
	// The same plans, but the job is one of two ranks now: the caches stay.
	two := newJob(2)
	two.caches = j.caches[:2]
	locals := []*plan.SavePlan{planOf(item("x", []int64{6}, span(0, 2)), replica("y", 3)), planOf(item("x", []int64{6}, span(2, 4)), replica("y", 3))}
	if _, err := two.save(locals...); err != nil || !two.planned || len(unchanged(two.sent)) != 0 {
		t.Errorf("two ranks: planned %v, unchanged %v, %v", two.planned, unchanged(two.sent), err)
	}
	// The coordinator refuses an unchanged plan of a job with another number of ranks.
	_, _, err := j.caches[0].Global([]*plan.SavePlan{{Unchanged: true, Fingerprint: two.sent[0].Fingerprint}}, global)
	if !errors.Is(err, plan.ErrStale) {
		t.Errorf("Global of one rank after two = %v; want ErrStale", err)
	}
}

func TestCacheDetectsStalePlans(t *testing.T) {
	j := newJob(3)
	must.Get(j.save(three()...))(t)
	j.caches[0].Forget() // the coordinator was restarted
	_, err := j.save(three()...)
	if !errors.Is(err, plan.ErrStale) || !strings.Contains(err.Error(), "rank 1") {
		t.Fatalf("save = %v; want ErrStale about rank 1", err)
	}
	for _, c := range j.caches {
		c.Forget()
	}
	if _, err := j.save(three()...); err != nil || !j.planned {
		t.Errorf("save after all forgot: planned %v, %v", j.planned, err)
	}

	j.caches[1] = new(plan.Cache) // another rank was restarted: it just sends its plan
	if _, err := j.save(three()...); err != nil || !cmp.Equal([]int{0, 2}, unchanged(j.sent)) {
		t.Errorf("save with a new rank 1: unchanged %v, %v", unchanged(j.sent), err)
	}
	for name, sent := range map[string]*plan.SavePlan{
		"another fingerprint": {Unchanged: true, Fingerprint: plan.Fingerprint{1}}, "no fingerprint": {Unchanged: true},
	} {
		all := slices.Clone(j.sent)
		all[2] = sent
		if _, _, err := j.caches[0].Global(all, global); !errors.Is(err, plan.ErrStale) || !strings.Contains(err.Error(), "rank 2") {
			t.Errorf("Global of a plan with %s = %v; want ErrStale about rank 2", name, err)
		}
	}
	if _, err := new(plan.Cache).Finish(&plan.SavePlan{Unchanged: true}); !errors.Is(err, plan.ErrStale) {
		t.Errorf("Finish by an empty cache = %v; want ErrStale", err)
	}
	if _, err := j.caches[1].Finish(&plan.SavePlan{Unchanged: true, Fingerprint: plan.Fingerprint{1}}); !errors.Is(err, plan.ErrStale) {
		t.Errorf("Finish of another plan = %v; want ErrStale", err)
	}
}

// Two plans without fingerprints are not taken for the same plan.
func TestCachePlansWithoutFingerprint(t *testing.T) {
	c := new(plan.Cache)
	if _, _, err := c.Global(three(), global); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Global(slices.Repeat([]*plan.SavePlan{{Unchanged: true}}, 3), global); !errors.Is(err, plan.ErrStale) {
		t.Errorf("Global = %v; want ErrStale", err)
	}
}

// A save that failed between the global plan and Finish gave a rank a final plan
// that it never saw.
func TestCacheForgetsFailedSave(t *testing.T) {
	j := newJob(3)
	must.Get(j.save(three()...))(t)
	locals := three()
	locals[0].Items = append(locals[0].Items, replica("a", 99)) // moves y to rank 1
	must.Do(t, j.exchange(locals))
	// No rank finishes. Rank 1's local plan is the same in the next save, but the
	// final plan it remembers is not the coordinator's.
	finals := must.Get(j.save(locals...))(t)
	if d := cmp.Diff([]int{}, unchanged(j.sent)); d != "" {
		t.Errorf("after a failed save these ranks call their plans unchanged: %s", d)
	}
	if want, _, _ := global(locals); !cmp.Equal(lines(want), lines(finals)) {
		t.Errorf("finals: -want +got\n%s", cmp.Diff(lines(want), lines(finals)))
	}
}

func TestCacheForgetsFailedGlobalPlan(t *testing.T) {
	j := newJob(2)
	good := []*plan.SavePlan{planOf(item("x", []int64{4}, span(0, 2))), planOf(item("x", []int64{4}, span(2, 2)))}
	bad := []*plan.SavePlan{good[0], planOf(item("x", []int64{4}, span(3, 1)))}
	must.Get(j.save(good...))(t)
	if _, err := j.save(bad...); !errors.Is(err, plan.ErrState) {
		t.Fatalf("save of an incomplete tensor = %v; want ErrState", err)
	}
	if _, err := j.save(bad...); !errors.Is(err, plan.ErrState) {
		t.Fatalf("the same again = %v; want ErrState", err)
	}
	finals, err := j.save(good...)
	if want, _, _ := global(good); err != nil || !cmp.Equal(lines(want), lines(finals)) {
		t.Errorf("a good save after bad ones = %v, %v", lines(finals), err)
	}
}

func TestCacheRefusesInvalidPlans(t *testing.T) {
	c := new(plan.Cache)
	fewer := func(p []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
		return p[1:], &meta.Metadata{}, nil
	}
	if _, _, err := c.Global(three(), fewer); !errors.Is(err, plan.ErrProtocol) {
		t.Errorf("Global by a planner that loses a plan = %v; want ErrProtocol", err)
	}
	if _, _, err := c.Global([]*plan.SavePlan{nil}, global); !errors.Is(err, plan.ErrProtocol) {
		t.Errorf("Global of no plan = %v; want ErrProtocol", err)
	}
	if _, err := c.Local(planOf(plan.WriteItem{}), ""); !errors.Is(err, plan.ErrProtocol) {
		t.Errorf("Local of an item without description = %v; want ErrProtocol", err)
	}
}

// A planner may return final plans that carry no fingerprint.
func TestCacheFinalPlansOfOtherPlanners(t *testing.T) {
	c := new(plan.Cache)
	bare := func(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
		return []*plan.SavePlan{planOf(plans[0].Items...)}, &meta.Metadata{}, nil
	}
	for i := range 2 {
		sent, err := c.Local(planOf(replica("x", 1)), "o")
		if err != nil || sent.Unchanged != (i == 1) {
			t.Fatalf("save %d: Local = %+v, %v", i, sent, err)
		}
		answers, _, err := c.Global([]*plan.SavePlan{sent}, bare)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := c.Finish(answers[0]); err != nil || len(p.Items) != 1 {
			t.Fatalf("save %d: Finish = %+v, %v", i, p, err)
		}
	}
}

func TestFingerprintString(t *testing.T) {
	if got := (plan.Fingerprint{0xab, 0xcd}).String(); got != "abcd00000000" {
		t.Errorf("String = %s", got)
	}
}

// A reused plan writes the current data, not the data of the save that it was made for.
func TestCacheReusedPlanWritesNewData(t *testing.T) {
	j := newJob(1)
	for i := range 2 {
		x := counting(t, float32(10*i), 7, 3)
		d := new(plan.DefaultSave)
		finals, err := j.save(localPlan(t, d, plan.State{"x": sharded(t, shard.FlatEven(1), x, 0), "ragged": cut(t, x, span2(0, 0, 1, 3), span2(1, 0, 6, 3))}))
		if err != nil || j.planned != (i == 0) || len(finals[0].Items) != 3 {
			t.Fatalf("save %d: planned %v, %d items, %v", i, j.planned, len(finals[0].Items), err)
		}
		mem := &memory{md: j.md, chunks: map[string]*tensor.Tensor{}, values: map[string][]byte{}}
		mem.write(t, d, finals[0])
		got := plan.State{"x": zeros(t, tensor.Float32, 7, 3), "ragged": zeros(t, tensor.Float32, 7, 3)}
		mem.mustLoad(t, got)
		if !tensor.Equal(got["x"].(*tensor.Tensor), x) || !tensor.Equal(got["ragged"].(*tensor.Tensor), x) {
			t.Errorf("save %d wrote what another save held", i)
		}
	}
}

// span2 returns a box of a plane.
func span2(row, column, height, width int64) tensor.Box {
	return box([]int64{row, column}, []int64{height, width})
}

// Two states that take turns with one cache do not get each other's plan.
func TestCacheDifferentStates(t *testing.T) {
	j := newJob(1)
	model, optimizer := planOf(replica("w", 2)), planOf(replica("w", 2), replica("m", 2))
	for range 3 {
		for _, local := range []*plan.SavePlan{model, optimizer} {
			finals, err := j.save(local)
			want, md, _ := global([]*plan.SavePlan{local})
			if d := cmp.Diff(lines(want), lines(finals)) + cmp.Diff(md, j.md); d != "" || err != nil {
				t.Fatalf("%v: -want +got\n%s", err, d)
			}
		}
	}
}
