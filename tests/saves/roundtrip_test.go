package saves

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestReshardRowsToColumns(t *testing.T) {
	store := new(mem.Store)
	x := jobtest.Whole(t, []int64{37, 24}, 1)
	jobtest.OnRanks(t, 4, func(ctx context.Context, g group.Group) error {
		state := cairn.State{
			"model": map[string]any{"w": jobtest.Cut(t, jobtest.Rows(4), x, g.Rank()), "bias": jobtest.Whole(t, []int64{5}, 7)},
			"step":  12, "lr": 0.5, "name": "run",
			"layers": []any{map[string]any{"k": int64(3)}, jobtest.Whole(t, []int64{2}, 9)},
		}
		_, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g, Step: new(int64(12))})
		return err
	})
	jobtest.OnRanks(t, 3, func(ctx context.Context, g group.Group) error {
		w, err := shard.Empty(jobtest.Columns(3), tensor.Float32, x.Shape(), g.Rank())
		if err != nil {
			return err
		}
		bias := jobtest.Whole(t, []int64{5}, 0)
		state := cairn.State{
			"model": map[string]any{"w": w, "bias": bias}, "step": 0, "lr": 0.0, "name": "",
			"layers": []any{map[string]any{"k": nil}, jobtest.Whole(t, []int64{2}, 0)},
		}
		rep, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: g, RejectUnexpected: true})
		if err != nil {
			return err
		}
		if !tensor.Equal(w.Local(), jobtest.Cut(t, jobtest.Columns(3), x, g.Rank()).Local()) {
			return fmt.Errorf("rank %d: other elements than were saved", g.Rank())
		}
		if !tensor.Equal(bias, jobtest.Whole(t, []int64{5}, 7)) || *rep.Step != 12 {
			return fmt.Errorf("bias %v, step %d", bias, *rep.Step)
		}
		want := []any{12, 0.5, "run", map[string]any{"k": int64(3)}}
		got := []any{state["step"], state["lr"], state["name"], state["layers"].([]any)[0]}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("values: -want +got\n%s", d)
		}
		return nil
	})
}

func TestOpenWithoutGroup(t *testing.T) {
	store := new(mem.Store)
	x := jobtest.Whole(t, []int64{6, 4}, 1)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"x": x, "n": 3}, nil))(t)
	c := must.Get(cairn.Open(t.Context(), store))(t)
	defer c.Close()
	got, err := c.ReadTensor(t.Context(), "x")
	if err != nil || !tensor.Equal(got, x) {
		t.Errorf("ReadTensor = %v, %v; want what was saved", got, err)
	}
	n, err := c.ReadValue(t.Context(), "n")
	if err != nil || n != int64(3) {
		t.Errorf("ReadValue = %v, %v; want 3", n, err)
	}
	rep, err := c.Verify(t.Context(), nil)
	if err != nil || rep.Bytes != c.TotalBytes() {
		t.Errorf("Verify = %+v, %v", rep, err)
	}
	var _ blob.Store = store
}

// A state without anything in it is saved too, as PyTorch does.
func TestSaveNothing(t *testing.T) {
	store := new(mem.Store)
	jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) error {
		_, err := cairn.Save(ctx, store, nil, &cairn.SaveOptions{Group: g})
		return err
	})
	if s, _, err := cairn.LoadNew(t.Context(), store, nil); err != nil || len(s) != 0 {
		t.Errorf("LoadNew = %v, %v; want an empty state", s, err)
	}
}

func TestFailedSaveKeepsOldCheckpoint(t *testing.T) {
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"n": 1}, nil))(t)
	for name, state := range map[string]func(rank int) cairn.State{
		"a value of each rank's own":   func(rank int) cairn.State { return cairn.State{"rng": rank} },
		"what no codec takes":          func(int) cairn.State { return cairn.State{"f": func() {}} },
		"a tensor of another shape":    func(rank int) cairn.State { return cairn.State{"x": jobtest.Whole(t, []int64{int64(rank) + 1}, 0)} },
		"a tensor here, a value there": func(rank int) cairn.State { return cairn.State{"x": []any{1, jobtest.Whole(t, nil, 0)}[rank]} },
	} {
		errs := make([]error, 2)
		jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) error {
			_, errs[g.Rank()] = cairn.Save(ctx, store, state(g.Rank()), &cairn.SaveOptions{Group: g})
			return nil
		})
		for rank, err := range errs {
			if !errors.Is(err, cairn.ErrState) || err.Error() != errs[0].Error() {
				t.Errorf("%s: rank %d: Save = %v; want the same %v on both", name, rank, err, cairn.ErrState)
			}
		}
		if s, _, err := cairn.LoadNew(t.Context(), store, nil); err != nil || s["n"] != int64(1) {
			t.Errorf("%s: the old checkpoint is %v, %v", name, s, err)
		}
	}
}
