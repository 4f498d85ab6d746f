package saves

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// unequal is the state of a rank, of which "differs" is not the same on all ranks.
func unequal(t testing.TB, rank int, same, differs *tensor.Tensor) cairn.State {
	return cairn.State{
		"same": same, "differs": differs, "small": jobtest.Whole(t, []int64{3}, 5),
		fmt.Sprint("own", rank): jobtest.Whole(t, []int64{int64(1000 * (4 - rank))}, float32(rank)),
	}
}

// saveUnequal saves from four ranks and returns the error of each.
func saveUnequal(t testing.TB, s blob.Store, planner plan.DefaultSave, differs func(rank int) any) (errs [4]error) {
	same := jobtest.Whole(t, []int64{512, 1024}, 1)
	_ = inproc.Run(t.Context(), len(errs), func(ctx context.Context, g group.Group) error {
		state, p := unequal(t, g.Rank(), same, nil), planner
		state["differs"] = differs(g.Rank())
		_, errs[g.Rank()] = cairn.Save(ctx, s, state, &cairn.SaveOptions{Group: g, Planner: &p})
		return errs[g.Rank()]
	})
	return errs
}

// from returns a tensor that differs on one rank only, in one element.
func from(t testing.TB, odd int, shape []int64, at int) func(rank int) any {
	same, other := jobtest.Whole(t, shape, 1), jobtest.Whole(t, shape, 1)
	v, _ := other.Bytes()
	v[4*at] ^= 1
	return func(rank int) any {
		if rank == odd {
			return other
		}
		return same
	}
}

func TestTensorsThatDifferAreRefused(t *testing.T) {
	replicated := func(odd int) func(rank int) any { // two boxes, each on two ranks
		layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{2, 2}}, Placements: []shard.Placement{shard.Replicate(), shard.Shard(0)}}
		return func(rank int) any {
			x, err := shard.Empty(layout, tensor.Float32, []int64{8, 4}, rank)
			if err != nil {
				t.Error(err)
			}
			if v, _ := x.Local().Bytes(); rank == odd {
				v[5] = 1
			}
			return x
		}
	}
	large := []int64{1024, 1024} // sampled
	for claim, c := range map[string]struct {
		differs func(rank int) any
		text    string
	}{
		"on the last rank":            {from(t, 3, []int64{2}, 1), "rank 0 and rank 3 hold different contents, "},
		"on the first rank":           {from(t, 0, []int64{2}, 1), "rank 0 and ranks 1-3 hold different contents, "},
		"in the middle of a megabyte": {from(t, 1, []int64{512, 512}, 100_000), "rank 0 and rank 1 hold different contents, "},
		"at the end of a large one":   {from(t, 2, large, 1<<20-1), "rank 0 and rank 2 hold different contents, "},
		"at the start of a large one": {from(t, 2, large, 0), "rank 0 and rank 2 hold different contents, "},
		"in a box":                    {replicated(3), "rank 1 and rank 3 hold different contents of [4 0]+[4 4], "},
	} {
		for _, owner := range []plan.OwnerRule{plan.LeastLoaded, plan.LowestRank, plan.EveryHolder} {
			s := new(mem.Store)
			for rank, err := range saveUnequal(t, s, plan.DefaultSave{Owner: owner}, c.differs) {
				if !errors.Is(err, cairn.ErrState) {
					t.Fatalf("%s, %v: Save on rank %d = %v; want %v", claim, owner, rank, err, cairn.ErrState)
				}
				for _, want := range []string{`"differs": `, c.text, "save it as one that may differ", "1 problem"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s, %v: Save on rank %d = %v; want %s", claim, owner, rank, err, want)
					}
				}
			}
			if n := stored(t, s); n != 0 {
				t.Errorf("%s, %v: the failed save has left %d bytes", claim, owner, n)
			}
		}
	}
}

func TestTensorsThatAreEqualAreSaved(t *testing.T) {
	for _, owner := range []plan.OwnerRule{plan.LeastLoaded, plan.LowestRank, plan.EveryHolder} {
		for rank, err := range saveUnequal(t, new(mem.Store), plan.DefaultSave{Owner: owner}, from(t, -1, []int64{1024, 1024}, 0)) {
			if err != nil {
				t.Errorf("%v: Save on rank %d = %v", owner, rank, err)
			}
		}
	}
}

// The copy of rank 0 is saved, although it has the most bytes of its own.
func TestTensorsThatMayDiffer(t *testing.T) {
	for _, owner := range []plan.OwnerRule{plan.LeastLoaded, plan.LowestRank, plan.EveryHolder} {
		s := new(mem.Store)
		planner := plan.DefaultSave{Owner: owner, TensorsMayDiffer: func(fqn string) bool { return fqn == "differs" }}
		for rank, err := range saveUnequal(t, s, planner, func(rank int) any { return jobtest.Whole(t, []int64{9}, float32(10*rank)) }) {
			if err != nil {
				t.Fatalf("%v: Save on rank %d = %v", owner, rank, err)
			}
		}
		got, _, err := cairn.LoadNew(t.Context(), s, nil)
		if err != nil || !tensor.Equal(got["differs"].(*tensor.Tensor), jobtest.Whole(t, []int64{9}, 0)) {
			t.Errorf("%v: the tensor is not rank 0's: %v, %v", owner, got["differs"], err)
		}
	}
}

// Rank 0 holds the same as in the save before, so it reuses its plan, and another rank has got a
// copy meanwhile.
func TestTensorsThatDifferAreRefusedWithACache(t *testing.T) {
	var caches [2]plan.Cache
	store := new(mem.Store)
	for step, c := range []struct {
		holders int
		differs float32
		want    error
	}{{1, 0, nil}, {2, 1, cairn.ErrState}, {2, 0, nil}, {1, 0, nil}, {2, 1, cairn.ErrState}} {
		_ = inproc.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
			state := cairn.State{fmt.Sprint("own", g.Rank()): jobtest.Whole(t, []int64{int64(100 * g.Rank())}, 2)}
			if g.Rank() < c.holders {
				state["x"] = jobtest.Whole(t, []int64{4}, c.differs*float32(g.Rank()))
			}
			_, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g, Cache: &caches[g.Rank()]})
			if !errors.Is(err, c.want) {
				t.Errorf("save %d on rank %d = %v; want %v", step, g.Rank(), err, c.want)
			}
			return err
		})
	}
}

// In the background, also with less memory than the state needs. The next save of the
// same stagers is not affected.
func TestTensorsThatDifferInTheBackground(t *testing.T) {
	for _, ceiling := range []int64{64 << 20, 1 << 20, 64 << 10} {
		t.Run(fmt.Sprint(ceiling), func(t *testing.T) {
			store, same := jobtest.TempStore(t), jobtest.Whole(t, []int64{512, 1024}, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var mu sync.Mutex
			stagers := map[int]*cairn.Stager{}
			must.Do(t, inproc.Run(ctx, 2, func(ctx context.Context, g group.Group) error {
				mu.Lock()
				stagers[g.Rank()] = jobtest.Stager(t, &cairn.StagerOptions{Ceiling: ceiling})
				s := stagers[g.Rank()]
				mu.Unlock()
				for _, odd := range []int{1, -1} {
					p, err := cairn.SaveAsync(ctx, store, unequal(t, g.Rank(), same, from(t, odd, []int64{300_000}, 7)(g.Rank()).(*tensor.Tensor)),
						&cairn.AsyncOptions{Stager: s, SaveOptions: cairn.SaveOptions{Group: g}})
					if err != nil {
						return err
					}
					_, err = p.Wait(ctx)
					if odd >= 0 && (!errors.Is(err, cairn.ErrState) || !strings.Contains(err.Error(), "rank 0 and rank 1 hold different contents")) {
						return fmt.Errorf("a save of tensors that differ: %w", err)
					}
					if odd < 0 && err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}
