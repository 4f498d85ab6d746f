package plan_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
)

// sentPlans returns the plans that ranks with these states send.
func sentPlans(t *testing.T, states ...plan.State) []*plan.SavePlan {
	t.Helper()
	var out []*plan.SavePlan
	for rank, s := range states {
		d := new(plan.DefaultSave)
		must.Do(t, d.SetUp(plan.SaveSetup{State: s, Rank: rank, Size: len(states)}))
		p := must.Get(d.LocalPlan())(t)
		out = append(out, plan.WithValueHashes(p))
	}
	return out
}

func TestCheckValuesRefusesDifferences(t *testing.T) {
	same := plan.State{"step": 5, "rng": []byte{1}}
	for name, c := range map[string]struct {
		states []plan.State
		want   []string // names in the error
	}{
		"equal":                    {states: []plan.State{same, same, same}},
		"a value on one rank only": {states: []plan.State{{"rng.0": 1}, {"rng.1": 2}}},
		"one differs":              {states: []plan.State{same, {"step": 5, "rng": []byte{2}}}, want: []string{`"rng"`, "ranks 0 and 1"}},
		"two differ": {
			states: []plan.State{{"a": 1, "b": "x"}, {}, {"a": 2, "b": "y"}},
			want:   []string{`"a"`, `"b"`, "ranks 0 and 2"},
		},
		"an int is no float": {states: []plan.State{{"x": 1}, {"x": 1.0}}, want: []string{`"x"`}},
	} {
		err := plan.CheckValues(sentPlans(t, c.states...))
		if (err != nil) != (c.want != nil) || err != nil && !errors.Is(err, plan.ErrState) {
			t.Errorf("%s: CheckValues = %v; want an error: %v", name, err, c.want != nil)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: CheckValues = %v; want %s in it", name, err, w)
			}
		}
	}
}

func TestCheckValuesOfUnchangedPlans(t *testing.T) {
	plans := func(rng byte) []*plan.SavePlan {
		return sentPlans(t, plan.State{"rng": []byte{rng}}, plan.State{"rng": []byte{1}})
	}
	caches := []*plan.Cache{{}, {}}
	send := func(rng byte) []*plan.SavePlan {
		var out []*plan.SavePlan
		for rank, p := range plans(rng) {
			q := must.Get(caches[rank].Local(p, ""))(t)
			q = must.Get(carried(plan.SavePlanCodec{}, q))(t)
			out = append(out, q)
		}
		return out
	}
	first := send(1)
	must.Do(t, plan.CheckValues(first))
	for rank, p := range first {
		must.Get(caches[rank].Finish(p))(t)
	}
	second := send(2)
	if !second[0].Unchanged || !second[1].Unchanged {
		t.Fatal("a value of the same size made a new plan")
	}
	if err := plan.CheckValues(second); !errors.Is(err, plan.ErrState) {
		t.Errorf("CheckValues = %v; want %v", err, plan.ErrState)
	}
}
