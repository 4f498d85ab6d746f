package cairn_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
)

// renaming loads under the names that rename returns for the state's.
type renaming struct {
	plan.DefaultLoad
	rename func(s plan.State) plan.State
}

func (r *renaming) SetUp(s plan.LoadSetup) error {
	s.State = r.rename(s.State)
	return r.DefaultLoad.SetUp(s)
}

// prefixed returns s with a prefix before each name.
func prefixed(prefix string, s plan.State) plan.State {
	out := plan.State{}
	for name, v := range s {
		out[prefix+name] = v
	}
	return out
}

// renamedState is a state with values at every kind of place.
func renamedState(t testing.TB, n int, m *model) cairn.State {
	return cairn.State{
		"w": whole(t, []int64{2}, float32(n)), "lr": float64(n), "name": strings.Repeat("x", n), "list": []int{n, n},
		"deep": map[string]any{"t": whole(t, []int64{1}, float32(n)), "lr": float64(n), "in": []any{n, map[string]any{"k": n}}},
		"ints": map[int]int{3: n}, "typed": map[string]float64{"a": float64(n)}, "model": m,
	}
}

// A planner that renames in SetUp fills the caller's own state: tensors, values,
// nested ones and those of a Stateful.
func TestLoadPlannerRenamesInSetUp(t *testing.T) {
	store, calls := new(mem.Store), new([]string)
	trained := &model{w: whole(t, []int64{1}, 9), steps: 9, calls: calls}
	saved := renamedState(t, 2, trained)
	if _, err := cairn.Save(t.Context(), store, prefixed("old/", saved), nil); err != nil {
		t.Fatal(err)
	}
	for name, rename := range map[string]func(plan.State) plan.State{
		"top names": func(s plan.State) plan.State { return prefixed("old/", s) },
		"a nested map": func(s plan.State) plan.State {
			out := prefixed("old/", s)
			inner := plan.Slots(out["old/deep"].(*plan.Slot).Value().(map[string]any))
			delete(out, "old/deep")
			for name, v := range inner {
				out["old/deep."+name] = v
			}
			return out
		},
	} {
		t.Run(name, func(t *testing.T) {
			fresh := &model{w: whole(t, []int64{1}, 0), calls: calls}
			got := renamedState(t, 0, fresh)
			if _, err := cairn.Load(t.Context(), store, got, &cairn.LoadOptions{Planner: &renaming{rename: rename}}); err != nil {
				t.Fatal(err)
			}
			if fresh.steps != 9 || !cmp.Equal(fresh.w, trained.w, sameTensor) {
				t.Errorf("the model has %d steps and %v; want 9 and %v", fresh.steps, fresh.w, trained.w)
			}
			delete(got, "model")
			want := renamedState(t, 2, nil)
			delete(want, "model")
			if d := cmp.Diff(want, got, sameTensor); d != "" {
				t.Errorf("the state (-want +got):\n%s", d)
			}
		})
	}
}

// What is loaded into a planner's own copy of a value would never reach the
// caller.
func TestLoadRefusesCopiedSlotValue(t *testing.T) {
	store := new(mem.Store)
	if _, err := cairn.Save(t.Context(), store, cairn.State{"a": 1, "b": map[string]any{"c": 2}}, nil); err != nil {
		t.Fatal(err)
	}
	for name, rename := range map[string]func(plan.State) plan.State{
		`"a"`: func(s plan.State) plan.State {
			s["a"] = s["a"].(*plan.Slot).Value()
			return s
		},
		`"b.c"`: func(s plan.State) plan.State {
			s["b"] = map[string]any{"c": 0}
			return s
		},
	} {
		state := cairn.State{"a": 0, "b": map[string]any{"c": 0}}
		_, err := cairn.Load(t.Context(), store, state, &cairn.LoadOptions{Planner: &renaming{rename: rename}})
		if !errors.Is(err, cairn.ErrState) || !strings.Contains(err.Error(), name) {
			t.Errorf("Load = %v; want ErrState that names %s", err, name)
		}
	}
}

// assigning is a planner that puts what it loads into the state itself.
type assigning struct {
	plan.DefaultLoad
	state plan.State
}

func (a *assigning) SetUp(s plan.LoadSetup) error {
	a.state = s.State
	return a.DefaultLoad.SetUp(s)
}

func (a *assigning) LoadBytes(it *plan.ReadItem, _ string, data []byte) error {
	a.state[it.Dest.FQN] = len(data)
	return nil
}

func TestLoadPlannerAssignsToState(t *testing.T) {
	store := new(mem.Store)
	if _, err := cairn.Save(t.Context(), store, cairn.State{"a": "four"}, nil); err != nil {
		t.Fatal(err)
	}
	got := cairn.State{"a": nil}
	if _, err := cairn.Load(t.Context(), store, got, &cairn.LoadOptions{Planner: new(assigning)}); err != nil {
		t.Fatal(err)
	}
	if got["a"] != len(`"four"`) {
		t.Errorf("the state has %v; want %d", got["a"], len(`"four"`))
	}
}
