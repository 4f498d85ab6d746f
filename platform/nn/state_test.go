package nn

import (
	"context"
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
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
			m, err := cutModel(init(), layout, p.World().Rank())
			if err != nil {
				return err
			}
			g, err := platform.Comm(p.World())
			if err != nil {
				return err
			}
			return f(ctx, m, cairn.SaveOptions{Group: g})
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
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
		want, err := cutModel(normal(), shard.FlatEven(3), o.Group.Rank())
		if err != nil {
			return err
		}
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
