package saves

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// shifting is the state of some ranks, which changes from save to save: who holds a name, with
// which shape, contents and sharding.
type shifting struct {
	ranks  int
	states []cairn.State
	owner  plan.OwnerRule
	// differ are the tensors that may differ.
	differ map[string]bool
}

// step changes a few things.
func (c *shifting) step(t *rapid.T) {
	for range rapid.IntRange(0, 3).Draw(t, "changes") {
		rank := rapid.IntRange(0, c.ranks-1).Draw(t, "rank")
		name := rapid.SampledFrom([]string{"x", "x", "y", "n", "s"}).Draw(t, "name")
		kind := rapid.IntRange(0, 15).Draw(t, "change")
		switch {
		case kind == 0:
			delete(c.states[rank], name)
		case kind == 1 && name != "n":
			c.differ[name] = !c.differ[name]
		case kind == 2:
			c.owner = rapid.SampledFrom([]plan.OwnerRule{plan.LeastLoaded, plan.LowestRank, plan.EveryHolder}).Draw(t, "owner")
		case name == "n":
			c.states[rank]["n"] = rapid.Int64Range(9, 11).Draw(t, "value")
		case name == "s": // on all ranks, so that it is whole
			for r := range c.states {
				local := must.Get(tensor.Of([]int64{1, 3}, slices.Repeat([]float32{float32(r + kind)}, 3)))(t)
				c.states[r]["s"] = must.Get(shard.New(shard.Rows(c.ranks), []int64{int64(c.ranks), 3}, r, local))(t)
			}
		default:
			n := rapid.IntRange(2, 3).Draw(t, "elements")
			v := must.Get(tensor.Of([]int64{int64(n)}, slices.Repeat([]float32{float32(rapid.IntRange(0, 1).Draw(t, "contents"))}, n)))(t)
			if c.states[rank][name] = v; kind == 3 {
				for r := range c.states {
					c.states[r][name] = v
				}
			}
		}
	}
}

// save saves the state and returns the checkpoint as text, or the kind of the error.
func (c *shifting) save(t *rapid.T, caches []*plan.Cache) string {
	s := new(mem.Store)
	errs := make([]error, c.ranks)
	differ := maps.Clone(c.differ)
	_ = inproc.Run(context.Background(), c.ranks, func(ctx context.Context, g group.Group) error {
		p := &plan.DefaultSave{Owner: c.owner, TensorsMayDiffer: func(fqn string) bool { return differ[fqn] }}
		o := &cairn.SaveOptions{Group: g, Planner: p}
		if caches != nil {
			o.Cache = caches[g.Rank()]
		}
		_, errs[g.Rank()] = cairn.Save(ctx, s, maps.Clone(c.states[g.Rank()]), o)
		return errs[g.Rank()]
	})
	var out bytes.Buffer
	for rank, err := range errs {
		if err != nil && !errors.Is(err, cairn.ErrState) {
			t.Fatalf("Save on rank %d = %v", rank, err)
		}
		fmt.Fprintf(&out, "rank %d: refused %v\n", rank, err != nil)
	}
	if errs[0] != nil {
		return out.String()
	}
	got, _, err := cairn.LoadNew(context.Background(), s, nil)
	must.Do(t, err)
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if x, ok := got[name].(*tensor.Tensor); ok {
			fmt.Fprintf(&out, "%s: %v %x\n", name, x.Shape(), x.Contents())
			continue
		}
		fmt.Fprintf(&out, "%s: %v\n", name, got[name])
	}
	return out.String()
}

// Whatever changes from save to save, a save with the plans of earlier ones is refused if, and
// only if, it is refused without them, and saves the same.
func TestCacheChangesNoSave(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		c := &shifting{ranks: rapid.IntRange(2, 4).Draw(t, "ranks"), differ: map[string]bool{}}
		caches := make([]*plan.Cache, c.ranks)
		for r := range caches {
			caches[r] = new(plan.Cache)
			c.states = append(c.states, cairn.State{fmt.Sprint("own", r): int64(r)})
		}
		for n := range rapid.IntRange(2, 6).Draw(t, "saves") {
			c.step(t)
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				caches[rapid.IntRange(0, c.ranks-1).Draw(t, "restarted")] = new(plan.Cache)
			}
			if want, got := c.save(t, nil), c.save(t, caches); got != want {
				t.Fatalf("save %d:\n%swith a cache; without:\n%s", n, got, want)
			}
		}
	})
}
