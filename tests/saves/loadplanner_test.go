package saves

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
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
		"w": jobtest.Whole(t, []int64{2}, float32(n)), "lr": float64(n), "name": strings.Repeat("x", n), "list": []int{n, n},
		"deep": map[string]any{"t": jobtest.Whole(t, []int64{1}, float32(n)), "lr": float64(n), "in": []any{n, map[string]any{"k": n}}},
		"ints": map[int]int{3: n}, "typed": map[string]float64{"a": float64(n)}, "model": m,
	}
}

// A planner that renames in SetUp fills the caller's own state: tensors, values,
// nested names and names in a Stateful.
func TestLoadPlannerRenamesInSetUp(t *testing.T) {
	store, calls := new(mem.Store), new([]string)
	trained := &model{w: jobtest.Whole(t, []int64{1}, 9), steps: 9, calls: calls}
	saved := renamedState(t, 2, trained)
	must.Get(cairn.Save(t.Context(), store, prefixed("old/", saved), nil))(t)
	for name, rename := range map[string]func(plan.State) plan.State{
		"top names": func(s plan.State) plan.State { return prefixed("old/", s) },
		"a nested map": func(s plan.State) plan.State {
			out := prefixed("old/", s)
			inner := must.Get(plan.Flatten(out["old/deep"].(*plan.Slot).Value().(map[string]any)))(t)
			delete(out, "old/deep")
			for name, v := range inner {
				out["old/deep."+name] = v
			}
			return out
		},
		"all names": func(s plan.State) plan.State {
			flat := must.Get(plan.Flatten(s))(t)
			out := plan.State{}
			for name, v := range flat {
				out["old/"+name] = v
			}
			return out
		},
	} {
		t.Run(name, func(t *testing.T) {
			fresh := &model{w: jobtest.Whole(t, []int64{1}, 0), calls: calls}
			got := renamedState(t, 0, fresh)
			must.Get(cairn.Load(t.Context(), store, got, &cairn.LoadOptions{Planner: &renaming{rename: rename}}))(t)
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

// Bytes that are loaded into a planner's own copy of a value would never reach the caller.
func TestLoadRefusesCopiedSlotValue(t *testing.T) {
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"a": 1, "b": map[string]any{"c": 2}}, nil))(t)
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

// committing is a planner. Its CommitTensor and LoadBytes end with a call of assign.
type committing struct {
	plan.DefaultLoad
	setUp  func(s *plan.LoadSetup)
	assign func(p *committing, fqn string, v any) error
	mu     sync.Mutex
	state  plan.State // as SetUp received it
}

func (p *committing) SetUp(s plan.LoadSetup) error {
	p.state = s.State
	if p.setUp != nil {
		p.setUp(&s)
	}
	return p.DefaultLoad.SetUp(s)
}

func (p *committing) CommitTensor(it *plan.ReadItem, x *tensor.Tensor) error {
	return p.call(it.Dest.FQN, x.Clone())
}

func (p *committing) LoadBytes(it *plan.ReadItem, _ string, data []byte) error {
	return p.call(it.Dest.FQN, len(data))
}

func (p *committing) call(fqn string, v any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.assign(p, fqn, v)
}

// A planner replaces tensors and values of a nested state by their flat names: through
// their slots, or by assigning them in the state that it received.
func TestLoadPlannerAssignsByFlatName(t *testing.T) {
	nested := func(n float32) cairn.State {
		return cairn.State{
			"w": jobtest.Whole(t, []int64{2}, n), "lr": "four",
			"model": map[string]any{"w": jobtest.Whole(t, []int64{2}, n+1), "lr": "four", "in": []any{map[string]any{"w": jobtest.Whole(t, []int64{1}, n+2)}}},
			"typed": map[string]*tensor.Tensor{"w": jobtest.Whole(t, []int64{1}, n+3)},
		}
	}
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, nested(5), nil))(t)
	bySlot := func(p *committing, fqn string, v any) error {
		s, err := p.Slot(fqn)
		if err != nil {
			return err
		}
		return s.Set(v)
	}
	for name, p := range map[string]*committing{
		"slot": {assign: bySlot},
		"key":  {assign: func(p *committing, fqn string, v any) error { p.state[fqn] = v; return nil }},
		"slot of a moved leaf": {
			setUp: func(s *plan.LoadSetup) {
				flat, err := plan.Flatten(s.State)
				if err != nil {
					t.Error(err)
				}
				s.State = plan.State{}
				for name, v := range flat {
					s.State[name] = v
				}
			},
			assign: bySlot,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := nested(0)
			tops, model := maps.Clone(got), got["model"].(map[string]any)
			inner := maps.Clone(model)
			must.Get(cairn.Load(t.Context(), store, got, &cairn.LoadOptions{Planner: p}))(t)
			want, four := nested(5), len(`"four"`)
			want["lr"], want["model"].(map[string]any)["lr"] = four, four
			if d := cmp.Diff(want, got, sameTensor); d != "" {
				t.Errorf("the state (-want +got):\n%s", d)
			}
			if got["w"] == tops["w"] || model["w"] == inner["w"] {
				t.Error("the state holds its old tensors; want the tensors that the planner assigned")
			}
		})
	}
}

// A name that the state does not have is an error on every rank, and no key of the
// caller's state.
func TestLoadPlannerAssignsUnknownName(t *testing.T) {
	store := new(mem.Store)
	saved := cairn.State{"model": map[string]any{"w": jobtest.Whole(t, []int64{2}, 1)}}
	must.Get(cairn.Save(t.Context(), store, saved, nil))(t)
	for name, assign := range map[string]func(p *committing, fqn string, v any) error{
		"key": func(p *committing, fqn string, v any) error { p.state["model.x"] = v; return nil },
		"slot": func(p *committing, fqn string, v any) error {
			_, err := p.Slot("model.x")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var failed atomic.Int32
			jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
				state := cairn.State{"model": map[string]any{"w": jobtest.Whole(t, []int64{2}, 0)}}
				o := &cairn.LoadOptions{Group: g}
				if g.Rank() == 1 {
					o.Planner = &committing{assign: assign}
				}
				_, err := cairn.Load(ctx, store, state, o)
				if err == nil || !strings.Contains(err.Error(), `rank 1`) || !strings.Contains(err.Error(), `"model.x"`) {
					return fmt.Errorf("Load = %v; want an error of rank 1 that names model.x", err)
				}
				if !errors.Is(err, cairn.ErrProtocol) && !errors.Is(err, cairn.ErrState) {
					return fmt.Errorf("Load = %v; want ErrProtocol or ErrState", err)
				}
				if len(state) != 1 || len(state["model"].(map[string]any)) != 1 {
					return fmt.Errorf("the state is %v; want no new key", state)
				}
				failed.Add(1)
				return nil
			})
			if failed.Load() != 2 {
				t.Errorf("%d ranks have checked their errors; want 2", failed.Load())
			}
		})
	}
}

// A planner may add names in SetUp: the caller receives them.
func TestLoadPlannerAddsNamesInSetUp(t *testing.T) {
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"w": jobtest.Whole(t, []int64{2}, 7)}, nil))(t)
	got := cairn.State{}
	added := &renaming{rename: func(s plan.State) plan.State {
		s["w"] = jobtest.Whole(t, []int64{2}, 0)
		return s
	}}
	must.Get(cairn.Load(t.Context(), store, got, &cairn.LoadOptions{Planner: added}))(t)
	if d := cmp.Diff(cairn.State{"w": jobtest.Whole(t, []int64{2}, 7)}, got, sameTensor); d != "" {
		t.Errorf("the state (-want +got):\n%s", d)
	}
}

// A tensor that a planner has moved without its slot is filled in place, but the caller
// would not receive another tensor.
func TestLoadPlannerReplacesMovedTensor(t *testing.T) {
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"old/w": jobtest.Whole(t, []int64{2}, 7)}, nil))(t)
	p := &committing{
		setUp: func(s *plan.LoadSetup) { s.State = prefixed("old/", s.State) },
		assign: func(p *committing, fqn string, v any) error {
			s, err := p.Slot(fqn)
			if err != nil {
				return err
			}
			return s.Set(v)
		},
	}
	_, err := cairn.Load(t.Context(), store, cairn.State{"w": jobtest.Whole(t, []int64{2}, 0)}, &cairn.LoadOptions{Planner: p})
	if !errors.Is(err, cairn.ErrProtocol) || !strings.Contains(err.Error(), "old/w") || !strings.Contains(err.Error(), "plan.Flatten") {
		t.Errorf("Load = %v; want ErrProtocol that names old/w and plan.Flatten", err)
	}
}

// Set reports a value that its container cannot hold, and keeps the old one.
func TestSlotRefusesOtherType(t *testing.T) {
	state := plan.State{"typed": map[string]int{"n": 3}}
	slots := must.Get(plan.Flatten(state))(t)
	s := slots["typed.n"]
	if err := s.Set("four"); !errors.Is(err, plan.ErrMismatch) || s.Value() != 3 {
		t.Errorf("Set = %v, the value is %v; want ErrMismatch and 3", err, s.Value())
	}
	if err := s.Set(4); err != nil || s.Value() != 4 || state["typed"].(map[string]int)["n"] != 4 {
		t.Errorf("Set = %v, the value is %v, the state %v; want 4", err, s.Value(), state)
	}
}

// hollow returns a tensor without memory.
func hollow(t testing.TB, shape ...int64) *tensor.Tensor {
	return must.Get(tensor.Placeholder(tensor.Float32, shape))(t)
}

// late gives placeholders memory in ResolveTensor, and puts the tensors into the state in
// CommitTensor.
type late struct {
	plan.DefaultLoad
	mu   sync.Mutex
	made map[string]*tensor.Tensor // guarded by mu
}

func (l *late) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	slot, err := l.Slot(it.Dest.FQN)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made[it.Dest.FQN] == nil {
		x := slot.Value().(*tensor.Tensor)
		if l.made[it.Dest.FQN], err = tensor.New(x.DType(), x.Shape()); err != nil {
			return nil, err
		}
	}
	return l.made[it.Dest.FQN].Narrow(it.DestBox())
}

func (l *late) CommitTensor(it *plan.ReadItem, _ *tensor.Tensor) error {
	slot, err := l.Slot(it.Dest.FQN)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slot.Set(l.made[it.Dest.FQN])
}

// A state of placeholders is loaded from the chunks of several ranks. Other references to the
// placeholders do not get memory.
func TestLoadPlannerMaterializesLate(t *testing.T) {
	store, x, y := new(mem.Store), jobtest.Whole(t, []int64{7, 4}, 1), jobtest.Whole(t, []int64{3}, 2)
	jobtest.OnRanks(t, 3, func(ctx context.Context, g group.Group) error {
		_, err := cairn.Save(ctx, store, cairn.State{"model": cairn.State{"x": jobtest.Cut(t, jobtest.Rows(3), x, g.Rank()), "list": []any{y}}, "n": 5}, &cairn.SaveOptions{Group: g})
		return err
	})
	for _, share := range []bool{false, true} {
		jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) error {
			was := hollow(t, 7, 4)
			state := cairn.State{"model": cairn.State{"x": was, "list": []any{hollow(t, 3)}}, "n": 0}
			p := &late{DefaultLoad: plan.DefaultLoad{AllowPlaceholders: true}, made: map[string]*tensor.Tensor{}}
			_, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: g, Planner: p, Share: share})
			if err != nil {
				return err
			}
			if d := cmp.Diff(cairn.State{"model": cairn.State{"x": x, "list": []any{y}}, "n": 5}, state, sameTensor); d != "" {
				return fmt.Errorf("the state (-want +got):\n%s", d)
			}
			if !was.IsPlaceholder() {
				return errors.New("the placeholder has memory; want a new tensor in its place")
			}
			return nil
		})
	}
}

// A planner that gives a tensor no memory is an error on all ranks, before bytes are lost.
func TestLoadPlannerForgetsMemory(t *testing.T) {
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"w": jobtest.Whole(t, []int64{2}, 7)}, nil))(t)
	jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) error {
		o := &cairn.LoadOptions{Group: g, Planner: &plan.DefaultLoad{AllowPlaceholders: g.Rank() == 1}}
		state := cairn.State{"w": jobtest.Whole(t, []int64{2}, 0)}
		if g.Rank() == 1 {
			state["w"] = hollow(t, 2)
		}
		_, err := cairn.Load(ctx, store, state, o)
		if !errors.Is(err, cairn.ErrProtocol) || !errors.Is(err, tensor.ErrPlaceholder) || !strings.Contains(err.Error(), `"w"`) {
			return fmt.Errorf("Load = %v; want ErrProtocol and ErrPlaceholder that name w", err)
		}
		return nil
	})
}

// resolving is a planner that provides memory for values.
type resolving struct {
	plan.DefaultLoad
	resolve func(it *plan.ReadItem, size int) ([]byte, error)
	mu      sync.Mutex
	got     map[string][]byte // the bytes that LoadBytes received; guarded by mu
}

func (r *resolving) ResolveBytes(it *plan.ReadItem, size int) ([]byte, error) {
	return r.resolve(it, size)
}

func (r *resolving) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	r.mu.Lock()
	r.got[it.Dest.FQN] = data
	r.mu.Unlock()
	return r.DefaultLoad.LoadBytes(it, codec, data)
}

// Small values are in the index, and large ones in files. Both come to the memory of the
// planner.
func TestLoadPlannerResolvesBytes(t *testing.T) {
	large := []byte(strings.Repeat("large", 1<<16))
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"large": large, "in": map[string]any{"small": []byte("small")}, "n": 5}, nil))(t)
	memory := map[string][]byte{"large": make([]byte, len(large)), "in.small": make([]byte, 5)}
	p := &resolving{got: map[string][]byte{}, resolve: func(it *plan.ReadItem, size int) ([]byte, error) { return memory[it.Dest.FQN], nil }}
	state := cairn.State{"large": []byte(nil), "in": map[string]any{"small": []byte(nil)}, "n": 0}
	must.Get(cairn.Load(t.Context(), store, state, &cairn.LoadOptions{Planner: p}))(t)
	for name, m := range memory {
		if got := p.got[name]; len(got) != len(m) || &got[0] != &m[0] {
			t.Errorf("LoadBytes received other memory for %s than ResolveBytes returned", name)
		}
	}
	want := cairn.State{"large": large, "in": map[string]any{"small": []byte("small")}, "n": 5}
	if d := cmp.Diff(want, state); d != "" || string(memory["large"]) != string(large) || string(memory["in.small"]) != "small" {
		t.Errorf("the memory has other bytes, or the state differs (-want +got):\n%s", d)
	}
}

func TestLoadPlannerResolvesWrongBytes(t *testing.T) {
	store, full := new(mem.Store), errors.New("no memory is left")
	must.Get(cairn.Save(t.Context(), store, cairn.State{"b": []byte("bytes")}, nil))(t)
	for name, c := range map[string]struct {
		memory []byte
		err    error
		want   error
	}{
		"too few":  {make([]byte, 4), nil, cairn.ErrProtocol},
		"too many": {make([]byte, 6), nil, cairn.ErrProtocol},
		"an error": {nil, full, full},
	} {
		p := &resolving{got: map[string][]byte{}, resolve: func(*plan.ReadItem, int) ([]byte, error) { return c.memory, c.err }}
		_, err := cairn.Load(t.Context(), store, cairn.State{"b": []byte("older")}, &cairn.LoadOptions{Planner: p})
		if !errors.Is(err, c.want) || len(p.got) > 0 {
			t.Errorf("%s: Load = %v, LoadBytes received %q; want %v", name, err, p.got, c.want)
		}
	}
}
