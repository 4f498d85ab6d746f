package saves

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// model is an object that gives its state and takes it back.
type model struct {
	w     *tensor.Tensor
	steps int
	// calls receives the name of every call, in order.
	calls *[]string
	name  string
	err   error
}

func (m *model) State() (cairn.State, error) {
	*m.calls = append(*m.calls, "state "+m.name)
	return cairn.State{"w": m.w, "steps": m.steps}, m.err
}

func (m *model) LoadState(s cairn.State) error {
	*m.calls = append(*m.calls, "load "+m.name)
	m.steps = s["steps"].(int)
	return m.err
}

func TestStatefulRoundTrip(t *testing.T) {
	store := new(mem.Store)
	var calls []string
	a := &model{w: jobtest.Whole(t, []int64{3}, 1), steps: 7, calls: &calls, name: "a"}
	z := &model{w: jobtest.Whole(t, []int64{2}, 5), steps: 9, calls: &calls, name: "z"}
	state := cairn.State{"z": z, "a": a, "n": 1}
	must.Get(cairn.Save(t.Context(), store, state, nil))(t)
	if state["a"] != a || state["z"] != z {
		t.Error("Save changed the state that it was given")
	}
	a2 := &model{w: jobtest.Whole(t, []int64{3}, 0), calls: &calls, name: "a"}
	z2 := &model{w: jobtest.Whole(t, []int64{2}, 0), calls: &calls, name: "z"}
	into := cairn.State{"z": z2, "a": a2, "n": 0}
	must.Get(cairn.Load(t.Context(), store, into, nil))(t)
	if !tensor.Equal(a2.w, a.w) || a2.steps != 7 || !tensor.Equal(z2.w, z.w) || z2.steps != 9 || into["n"] != 1 || into["a"] != a2 {
		t.Errorf("loaded a %v %d, z %v %d, n %v", a2.w, a2.steps, z2.w, z2.steps, into["n"])
	}
	want := []string{"state a", "state z", "state a", "state z", "load a", "load z"}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	md := jobtest.MustOpen(t, store)
	if _, err := md.Entry(t.Context(), "a.w"); err != nil {
		t.Errorf("the names do not tell of the object: %v", err)
	}
}

// An error of an object's own methods reaches all ranks, and no rank waits.
func TestStatefulFailureReachesAllRanks(t *testing.T) {
	store := new(mem.Store)
	broken := fmt.Errorf("model is on fire: %w", cairn.ErrState)
	save := func(ctx context.Context, g group.Group, err error) error {
		var calls []string
		state := cairn.State{"m": &model{w: jobtest.Whole(t, []int64{3}, 1), calls: &calls, err: err}}
		_, err = cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g})
		return err
	}
	load := func(ctx context.Context, g group.Group, err error) error {
		var calls []string
		m := &model{w: jobtest.Whole(t, []int64{3}, 1), calls: &calls, err: err}
		_, err = cairn.Load(ctx, store, cairn.State{"m": m}, &cairn.LoadOptions{Group: g})
		return err
	}
	must.Do(t, errors.Join(bubble(t, 3, func(ctx context.Context, g group.Group) error { return save(ctx, g, nil) })...))
	for name, do := range map[string]func(context.Context, group.Group, error) error{"save": save, "load": load} {
		errs := bubble(t, 3, func(ctx context.Context, g group.Group) error {
			if g.Rank() == 1 {
				return do(ctx, g, broken)
			}
			return do(ctx, g, nil)
		})
		for r, err := range errs {
			se, ok := errors.AsType[*group.StepError](err)
			if !ok || se.Step != "state" || !slices.Equal(se.Ranks(), []int{1}) || !errors.Is(err, cairn.ErrState) || err.Error() != errs[0].Error() {
				t.Errorf("%s: rank %d returned %v; want the error of rank 1", name, r, err)
			}
		}
	}
}

// takesNothing is a Stateful without a state that the load could fill as a map.
type takesNothing struct{ cairn.Stateful }

func (takesNothing) State() (cairn.State, error) { return cairn.State{}, nil }

func (takesNothing) LoadState(cairn.State) error { return errors.New("did not expect anything") }

func TestStatefulErrorIsReturned(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"x": jobtest.Whole(t, []int64{1}, 1)})
	_, err := cairn.Load(t.Context(), store, cairn.State{"m": takesNothing{}}, nil)
	if err == nil || !strings.Contains(err.Error(), `state of "m": did not expect anything`) {
		t.Errorf("Load = %v; want the object's own words", err)
	}
}
