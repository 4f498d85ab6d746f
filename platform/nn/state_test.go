package nn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

var _ cairn.Stateful = (*Module)(nil)

// cutModel is the model with its matrices cut over n ranks.
func cutModel(init Init, layout shard.Layout, rank int) (*Module, error) {
	m := model(init)
	for _, p := range m.Params() {
		if len(p.Shape()) == 2 {
			if err := p.SetLayout(layout, rank); err != nil {
				return nil, err
			}
		}
	}
	return m, m.Err()
}

// A module is saved as it is spread over ranks, and loaded into one that is spread in
// another way and was built without memory.
func TestModuleIsSavedAndLoadedInAnotherLayout(t *testing.T) {
	store := new(mem.Store)
	run := func(n int, layout shard.Layout, init func() Init, f func(ctx context.Context, m *Module, o cairn.SaveOptions) error) {
		t.Helper()
		errs := onRanks(t.Context(), n, func(ctx context.Context, p platform.Platform) error {
			m := must.Value(cutModel(init(), layout, p.World().Rank()))
			g := must.Value(platform.Comm(p.World()))
			return f(ctx, m, cairn.SaveOptions{Group: g})
		})
		must.Do(t, errors.Join(errs...))
	}
	run(2, shard.Rows(2), normal, func(ctx context.Context, m *Module, o cairn.SaveOptions) error {
		_, err := cairn.Save(ctx, store, cairn.State{"model": m, "step": 3}, &o)
		return err
	})
	meta := func() Init { return Meta }
	run(3, shard.FlatEven(3), meta, func(ctx context.Context, m *Module, o cairn.SaveOptions) error {
		if err := m.InitParams(0, func(_ string, p *Param) error { return p.Local().Materialize() }); err != nil {
			return err
		}
		state := cairn.State{"model": m, "step": 0}
		if _, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: o.Group}); err != nil {
			return err
		}
		want := must.Value(cutModel(normal(), shard.FlatEven(3), o.Group.Rank()))
		for name, p := range want.Params() {
			if got := m.Param(name).Local(); !tensor.Equal(got, p.Local()) {
				t.Errorf("rank %d: %s is %v", o.Group.Rank(), name, floats(t, got))
			}
		}
		if state["model"] != m {
			t.Errorf("the state has the model %v", state["model"])
		}
		return nil
	})
}

// twice is a module that has one of its modules, and one of its parameters, under several
// names.
func twice(t testingT, values *tensor.Tensor) *Module {
	inner := New(Other, nil)
	inner.AddParam("w", param(t, values))
	m := New(Other, nil)
	m.AddChild("first", inner)
	m.AddChild("second", inner)
	m.AddParam("tied", inner.Param("w"))
	return m
}

func TestStateHasAllNames(t *testing.T) {
	m := twice(t, counted(t, 3))
	s, err := m.State()
	must.Do(t, err)
	names := slices.Sorted(maps.Keys(s))
	if want := []string{"first.w", "second.w", "tied"}; !slices.Equal(names, want) {
		t.Errorf("State has %q; want %q", names, want)
	}
	for name, v := range s {
		if v != any(m.Param("tied").Local()) {
			t.Errorf("%s is %v; want the parameter's own tensor", name, v)
		}
	}
	count := 0
	for range m.Params() {
		count++
	}
	if count != 1 {
		t.Errorf("Params has %d; want the parameter once", count)
	}
}

// One name of a tied parameter is enough for LoadState, several must be equal.
func TestLoadStateOfTiedParameters(t *testing.T) {
	half, err := tensor.Cast(counted(t, 3), tensor.Float16)
	must.Do(t, err)
	other := counted(t, 3)
	floats(t, other)[2] = 7
	for name, c := range map[string]struct {
		state map[string]any
		want  error
	}{
		"the first name":       {map[string]any{"tied": counted(t, 3)}, nil},
		"the last name":        {map[string]any{"second.w": counted(t, 3)}, nil},
		"all names":            {map[string]any{"tied": counted(t, 3), "first.w": counted(t, 3), "second.w": counted(t, 3)}, nil},
		"equal after a cast":   {map[string]any{"first.w": counted(t, 3), "second.w": half}, nil},
		"different values":     {map[string]any{"first.w": counted(t, 3), "second.w": other}, ErrName},
		"a second of no shape": {map[string]any{"first.w": counted(t, 3), "second.w": counted(t, 4)}, ErrName},
		"a second of no kind":  {map[string]any{"first.w": counted(t, 3), "second.w": 3}, ErrName},
		"no name":              {map[string]any{"third.w": counted(t, 3)}, fs.ErrNotExist},
	} {
		zeros, err := Zeros([]int64{3})
		must.Do(t, err)
		m := twice(t, zeros)
		if err := m.LoadState(c.state); !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
		if c.want == nil && !tensor.Equal(m.Param("tied").Local(), counted(t, 3)) {
			t.Errorf("%s: the parameter is %v", name, floats(t, m.Param("tied").Local()))
		}
	}
}

// formats are the formats that modules are saved in.
var formats = map[string]storage.Format{
	"native": native.Format{}, "torchdcp": torchdcp.Format{}, "hf": hf.Format{}, "hyper": hyper.Format{},
}

// A module is saved into a folder of files and loaded from it: under its names without a
// prefix, tied ones too, into a module of another layout that had no memory.
func TestModuleToFilesAndBack(t *testing.T) {
	for format, f := range formats {
		for name, c := range map[string]struct {
			saving, loading int
			from, to        func(n int) shard.Layout
		}{
			"one rank":      {1, 1, nil, nil},
			"two ranks":     {2, 2, func(n int) shard.Layout { return shard.Rows(n) }, func(n int) shard.Layout { return shard.Columns(n) }},
			"three to one":  {3, 1, func(n int) shard.Layout { return shard.FlatEven(n) }, nil},
			"one to a pair": {1, 2, nil, func(n int) shard.Layout { return shard.FlatEven(n) }},
		} {
			t.Run(format+", "+name, func(t *testing.T) {
				store, err := file.Open(t.TempDir(), nil)
				must.Do(t, err)
				each := func(n int, layout func(n int) shard.Layout, init func() Init, f func(ctx context.Context, m *Module, g group.Group) error) {
					t.Helper()
					errs := onRanks(t.Context(), n, func(ctx context.Context, p platform.Platform) error {
						m := model(init())
						if layout != nil {
							var err error
							if m, err = cutModel(init(), layout(n), p.World().Rank()); err != nil {
								return err
							}
						}
						g := must.Value(platform.Comm(p.World()))
						return f(ctx, m, g)
					})
					must.Do(t, errors.Join(errs...))
				}
				each(c.saving, c.from, normal, func(ctx context.Context, m *Module, g group.Group) error {
					_, err := Save(ctx, store, m, &cairn.SaveOptions{Group: g, Format: f})
					return err
				})
				each(c.loading, c.to, func() Init { return Meta }, func(ctx context.Context, m *Module, g group.Group) error {
					if _, err := Load(ctx, store, m, &cairn.LoadOptions{Group: g}); err != nil {
						return err
					}
					want := model(normal())
					if c.to != nil {
						var err error
						if want, err = cutModel(normal(), c.to(c.loading), g.Rank()); err != nil {
							return err
						}
					}
					for name, p := range want.Params() {
						if got := m.Param(name).Local(); !tensor.Equal(got, p.Local()) {
							return fmt.Errorf("%s is %v", name, floats(t, got))
						}
					}
					return nil
				})
				state, _, err := cairn.LoadNew(t.Context(), store, nil)
				must.Do(t, err)
				whole, err := platform.Tensors(state)
				must.Do(t, err)
				if names := slices.Sorted(maps.Keys(whole)); len(names) != len(modelParams)+1 || !tensor.Equal(whole["head.weight"], whole["emb.weight"]) {
					t.Errorf("the checkpoint has %q", names)
				}
			})
		}
	}
}

// A checkpoint that has one name of a tied weight, as files of Hugging Face do, fills it.
func TestLoadOfOneNameOfATiedWeight(t *testing.T) {
	for _, left := range []string{"emb.weight", "head.weight"} {
		store := new(mem.Store)
		s, err := model(normal()).State()
		must.Do(t, err)
		delete(s, left)
		if _, err := cairn.Save(t.Context(), store, s, nil); err != nil {
			t.Fatal(err)
		}
		m := model(Zeros)
		r, err := Load(t.Context(), store, m, nil)
		if err != nil || len(r.Missing) > 0 {
			t.Fatalf("without %s: %v, %v", left, r, err)
		}
		for name, p := range model(normal()).Params() {
			if got := m.Param(name).Local(); !tensor.Equal(got, p.Local()) {
				t.Errorf("without %s: %s is %v", left, name, floats(t, got))
			}
		}
	}
}

// A module with an error on one rank fails the save and the load on all ranks.
func TestSaveOfABrokenModuleFailsOnAllRanks(t *testing.T) {
	store := new(mem.Store)
	for name, call := range map[string]func(ctx context.Context, m *Module, g group.Group) error{
		"save": func(ctx context.Context, m *Module, g group.Group) error {
			_, err := Save(ctx, store, m, &cairn.SaveOptions{Group: g})
			return err
		},
		"load": func(ctx context.Context, m *Module, g group.Group) error {
			_, err := Load(ctx, store, m, &cairn.LoadOptions{Group: g})
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			errs := staying(t.Context(), 3, func(ctx context.Context, p platform.Platform) error {
				m := model(Zeros)
				switch p.World().Rank() {
				case 1:
					m.AddParam("", param(t, counted(t, 1)))
				case 2:
					m = nil
				}
				g := must.Value(platform.Comm(p.World()))
				return call(ctx, m, g)
			})
			for r, err := range errs {
				if e, ok := errors.AsType[*group.StepError](err); !ok || !slices.Equal(e.Ranks(), []int{1, 2}) || !errors.Is(err, ErrName) {
					t.Errorf("%s: rank %d: %v; want ErrName of ranks 1 and 2", name, r, err)
				}
			}
		})
	}
}

// A value that hides a tensor is refused if the tensor would be left out or not be cut.
func TestVariablesAreNotLeftOut(t *testing.T) {
	p := param(t, counted(t, 4))
	for name, v := range map[string]any{"a variable": p.Var(), "a parameter": p, "a module": model(Zeros)} {
		if got, err := platform.Tensors(map[string]any{"x": v}); !errors.Is(err, value.ErrValue) {
			t.Errorf("Tensors of %s = %v, %v; want ErrValue", name, got, err)
		}
		if got, err := platform.MicroBatch(2, platform.Batch{Named: map[string]any{"x": v}}, platform.BatchDims{}); !errors.Is(err, value.ErrValue) {
			t.Errorf("MicroBatch of %s = %v, %v; want ErrValue", name, got, err)
		}
	}
}
