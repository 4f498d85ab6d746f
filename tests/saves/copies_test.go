package saves

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// saveBoth saves one state from two ranks.
func saveBoth(t *testing.T, store blob.Store, f storage.Format, cache []*plan.Cache, p plan.DefaultSave, state cairn.State) (written [2]int64, reused bool) {
	t.Helper()
	must.Do(t, inproc.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
		planner := p
		r, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g, Format: f, Planner: &planner, Cache: cache[g.Rank()]})
		if err == nil {
			written[g.Rank()] = r.RankBytes
			if g.Rank() == 0 {
				reused = r.PlanReused
			}
		}
		return err
	}))
	return written, reused
}

// Copies of every rank make a checkpoint that verifies and loads, with a cached
// plan too, and repair finds it from its files.
func TestCopiesOfEveryHolderVerifyAndLoad(t *testing.T) {
	for _, f := range []storage.Format{native.Format{}, torchdcp.Format{}, hyper.Format{}} {
		t.Run(f.Name(), func(t *testing.T) {
			store, cache := new(mem.Store), []*plan.Cache{new(plan.Cache), new(plan.Cache)}
			state := cairn.State{"w": jobtest.Whole(t, []int64{100, 100}, 1), "lr": 0.5}
			once, _ := saveBoth(t, store, f, cache, plan.DefaultSave{}, state)
			both, _ := saveBoth(t, store, f, cache, plan.DefaultSave{Owner: plan.EveryHolder}, state)
			again, reused := saveBoth(t, store, f, cache, plan.DefaultSave{Owner: plan.EveryHolder}, state)
			if min(once[0], once[1]) >= 40_000 || min(both[0], both[1]) < 40_000 || again != both || !reused {
				t.Errorf("written: %v once, %v by every holder, %v again, reused %v", once, both, again, reused)
			}
			c := must.Get(cairn.Open(t.Context(), store))(t)
			defer c.Close()
			if rep, err := c.Verify(t.Context(), nil); err != nil {
				t.Errorf("Verify = %+v, %v", rep, err)
			}
			checkLoaded(t, store, state)
		})
	}
	t.Run("repair", func(t *testing.T) {
		store, state := new(mem.Store), cairn.State{"w": jobtest.Whole(t, []int64{10}, 1), "lr": 0.5}
		saveBoth(t, store, nil, make([]*plan.Cache, 2), plan.DefaultSave{Owner: plan.EveryHolder}, state)
		must.Do(t, store.Remove(t.Context(), "cairn.json"))
		must.Get(native.Repair(t.Context(), store, nil))(t)
		checkLoaded(t, store, state)
	})
}

func checkLoaded(t *testing.T, store blob.Store, want cairn.State) {
	t.Helper()
	got, _, err := cairn.LoadNew(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got["lr"] != want["lr"] || !cmp.Equal(got["w"], want["w"], sameTensor) {
		t.Errorf("loaded %v; want %v", got, want)
	}
}
