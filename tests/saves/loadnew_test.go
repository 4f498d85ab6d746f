package saves

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func nested(t testing.TB) cairn.State {
	return cairn.State{
		"model": map[string]any{
			"w":      jobtest.Whole(t, []int64{2, 3}, 1),
			"layers": []any{map[string]any{"k": int64(1)}, jobtest.Whole(t, []int64{2}, 7), nil, []any{"x", jobtest.Whole(t, []int64{}, 9)}},
		},
		"modeler": "not below model", "opt": map[string]any{"lr": 0.5, "betas": []any{0.9, 0.99}}, "empty": []any{},
	}
}

func TestLoadNewMakesTheState(t *testing.T) {
	store := new(mem.Store)
	want := nested(t)
	mustSave(t, store, want)
	got, rep, err := cairn.LoadNew(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sameTensor); diff != "" {
		t.Errorf("LoadNew (-want +got):\n%s", diff)
	}
	if rep.Missing != nil || rep.SaveID == "" || rep.Total.Needed == 0 {
		t.Errorf("report = %+v", rep)
	}
}

func TestLoadNewByPrefix(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, nested(t))
	for _, c := range []struct {
		prefixes []string
		want     cairn.State
	}{
		{[]string{"opt"}, cairn.State{"opt": map[string]any{"lr": 0.5, "betas": []any{0.9, 0.99}}}},
		{[]string{"opt.lr", "modeler"}, cairn.State{"opt": map[string]any{"lr": 0.5}, "modeler": "not below model"}},
		{[]string{"model.w"}, cairn.State{"model": map[string]any{"w": jobtest.Whole(t, []int64{2, 3}, 1)}}},
		{[]string{"model.layers.1"}, cairn.State{"model": map[string]any{"layers": []any{nil, jobtest.Whole(t, []int64{2}, 7)}}}},
		{[]string{"model.layers.3.1"}, cairn.State{"model": map[string]any{"layers": []any{nil, nil, nil, []any{nil, jobtest.Whole(t, []int64{}, 9)}}}}},
		{[]string{"model."}, cairn.State{"model": nested(t)["model"]}},
	} {
		got, _, err := cairn.LoadNew(t.Context(), store, nil, c.prefixes...)
		if err != nil {
			t.Errorf("LoadNew(%q) = %v", c.prefixes, err)
			continue
		}
		if diff := cmp.Diff(c.want, got, sameTensor); diff != "" {
			t.Errorf("LoadNew(%q) (-want +got):\n%s", c.prefixes, diff)
		}
	}
	for _, prefix := range []string{"mod", "nothing"} {
		if got, _, err := cairn.LoadNew(t.Context(), store, nil, "opt", prefix); !errors.Is(err, cairn.ErrMissing) {
			t.Errorf("LoadNew(opt, %s) = %v, %v; want %v", prefix, got, err, cairn.ErrMissing)
		}
	}
}

// One rank cannot read the metadata; the others must not wait for it.
func TestLoadNewFailureReachesAllRanks(t *testing.T) {
	sound, empty := new(mem.Store), new(mem.Store)
	mustSave(t, sound, nested(t))
	errs := bubble(t, 3, func(ctx context.Context, g group.Group) error {
		s := sound
		if g.Rank() == 2 {
			s = empty
		}
		_, _, err := cairn.LoadNew(ctx, s, &cairn.LoadOptions{Group: g})
		return err
	})
	for r, err := range errs {
		if !errors.Is(err, cairn.ErrNotFound) {
			t.Errorf("rank %d returned %v; want %v", r, err, cairn.ErrNotFound)
		}
	}
	for r, err := range bubble(t, 3, func(ctx context.Context, g group.Group) error {
		got, _, err := cairn.LoadNew(ctx, sound, &cairn.LoadOptions{Group: g})
		if err == nil && !cmp.Equal(nested(t), got, sameTensor) {
			err = errors.New("another state than was saved")
		}
		return err
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
