package saves

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// replaced is a reader of a checkpoint that is replaced after the metadata was read.
type replaced struct {
	storage.Reader
	replace func()
}

func (r *replaced) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	md, err := r.Reader.ReadMetadata(ctx)
	if r.replace != nil {
		r.replace()
		r.replace = nil
	}
	return md, err
}

func TestLoadNewDetectsReplacement(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"a": jobtest.Whole(t, []int64{4}, 1), "b": jobtest.Whole(t, []int64{4}, 1), "v": 1})
	r := &replaced{Reader: storage.NewReader(native.Format{}.Open, store, storage.ReadOptions{}), replace: func() {
		mustSave(t, store, cairn.State{"a": jobtest.Whole(t, []int64{4}, 100), "c": jobtest.Whole(t, []int64{4}, 1)})
	}}
	s, _, err := cairn.LoadNew(t.Context(), store, &cairn.LoadOptions{Reader: r})
	if !errors.Is(err, cairn.ErrChanged) || s != nil {
		t.Errorf("LoadNew of a checkpoint that was replaced meanwhile = %v, %v; want nothing and %v", s, err, cairn.ErrChanged)
	}
}

func TestObserverPanicIsError(t *testing.T) {
	boo := &cairn.Observer{Moved: func(int64) { panic("boo") }}
	store := new(mem.Store)
	x := jobtest.Whole(t, []int64{1 << 10}, 1)
	if _, err := cairn.Save(t.Context(), store, cairn.State{"x": x}, &cairn.SaveOptions{Observer: boo}); err == nil || !strings.Contains(err.Error(), "boo") {
		t.Errorf("Save = %v; want the panic", err)
	}
	mustSave(t, store, cairn.State{"x": x})
	if _, err := cairn.Load(t.Context(), store, cairn.State{"x": x.Clone()}, &cairn.LoadOptions{Observer: boo}); err == nil || !strings.Contains(err.Error(), "boo") {
		t.Errorf("Load = %v; want the panic", err)
	}
}

// gaps is a planner that forgets half of every tensor.
type gaps struct{ *plan.DefaultSave }

func (g gaps) GlobalPlan(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	out, md, err := g.DefaultSave.GlobalPlan(plans)
	if err == nil {
		md.Entries[0].Tensor.Shape = []int64{8}
	}
	return out, md, err
}

func TestSaveWrongPlannerKeepsOldCheckpoint(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"n": 1})
	_, err := cairn.Save(t.Context(), store, cairn.State{"x": jobtest.Whole(t, []int64{4}, 1)}, &cairn.SaveOptions{Planner: gaps{new(plan.DefaultSave)}})
	if !errors.Is(err, meta.ErrInvalid) {
		t.Errorf("Save = %v; want %v", err, meta.ErrInvalid)
	}
	if s, _, err := cairn.LoadNew(t.Context(), store, nil); err != nil || s["n"] != int64(1) {
		t.Errorf("the old checkpoint is %v, %v", s, err)
	}
}

func TestNilStoreFailsOnAllRanks(t *testing.T) {
	store := new(mem.Store)
	errs := make([]error, 2)
	jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) error {
		o := &cairn.SaveOptions{Group: g}
		if g.Rank() == 1 {
			_, errs[1] = cairn.Save(ctx, nil, cairn.State{"n": 1}, o)
		} else {
			_, errs[0] = cairn.Save(ctx, store, cairn.State{"n": 1}, o)
		}
		return nil
	})
	for rank, err := range errs {
		if e, ok := errors.AsType[*group.StepError](err); !ok || len(e.Ranks()) != 1 || e.Ranks()[0] != 1 {
			t.Errorf("rank %d: Save = %v; want an error of rank 1", rank, err)
		}
	}
	if _, err := cairn.Open(t.Context(), nil); err == nil {
		t.Error("Open without a store succeeded")
	}
}

// noting is a planner that keeps data of its own with the checkpoint.
type noting struct{ plan.DefaultSave }

func (n *noting) GlobalPlan(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	ps, md, err := n.DefaultSave.GlobalPlan(ps)
	if err != nil {
		return nil, nil, err
	}
	noted := *md
	noted.PlannerData = json.RawMessage(`{"note":[1]}`)
	return ps, &noted, nil
}

// Every format keeps planner data and the nesting of the state, or refuses the
// data by name before it writes anything.
func TestSaveKeepsPlannerDataAndNesting(t *testing.T) {
	state := cairn.State{"m": map[string]any{"layers": []any{map[string]any{"w": jobtest.Whole(t, []int64{3}, 1)}}}}
	for _, name := range formats.Alone() {
		f, err := formats.ByName(name, &formats.Options{File: "m.pt"})
		if err != nil {
			t.Fatal(err)
		}
		store := new(mem.Store)
		moved := int64(0)
		_, err = cairn.Save(t.Context(), store, state, &cairn.SaveOptions{
			Format: f, Planner: &noting{}, Observer: &cairn.Observer{Moved: func(n int64) { moved += n }},
		})
		if name == formats.HF || name == formats.Torch {
			if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), "planner data") || moved > 0 {
				t.Errorf("%s: Save = %v after %d bytes; want %v about the planner data", name, err, moved, storage.ErrNotRepresentable)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c, err := cairn.Open(t.Context(), store)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		md, err := c.Metadata(t.Context())
		if err != nil || string(md.PlannerData) != `{"note":[1]}` {
			t.Errorf("%s: planner data %s, %v; want what the planner kept", name, md.PlannerData, err)
		}
		got, _, err := cairn.LoadNew(t.Context(), store, nil)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(state) {
			t.Errorf("%s: LoadNew = %v, %v; want %v", name, got, err, state)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
