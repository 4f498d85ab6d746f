package nn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// staying is onRanks for ranks that do not leave the group when they return, which would
// end the calls of the others.
func staying(ctx context.Context, n int, f func(ctx context.Context, p platform.Platform) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, g := range inproc.New(n) {
		wg.Go(func() { errs[r] = group.Catch(func() error { return f(ctx, host.New(g)) }) })
	}
	wg.Wait()
	return errs
}

// gradCall is the arguments of a rank.
type gradCall struct {
	ctx        context.Context
	params     map[string]*Param
	maxNorm, p float64
	finite     bool
	comms      *Comms
}

func (c *gradCall) seq() iter.Seq2[string, *Param] { return inOrder(c.params) }

// spoiled returns the mistakes that one rank can make, with the error that all ranks must get
// and a part of its text.
func spoiled(t *testing.T) map[string]struct {
	spoil func(c *gradCall)
	want  error
	says  string
	clip  bool // an argument of ClipGradNorm only
} {
	ints, err := tensor.New(tensor.Int32, []int64{4, 4})
	must.Do(t, err)
	expanded, err := counted(t, 1).Expand([]int64{4, 4})
	must.Do(t, err)
	none, err := Meta([]int64{4, 4})
	must.Do(t, err)
	without := func(layout shard.Layout, rank int) func(c *gradCall) {
		return func(c *gradCall) {
			p := param(t, counted(t, 4, 4))
			if err := p.SetLayout(layout, rank); err != nil {
				t.Error(err)
			}
			p.leaf.SetGrad(p.Local().Clone())
			c.params["whole"] = p
		}
	}
	type row = struct {
		spoil func(c *gradCall)
		want  error
		says  string
		clip  bool
	}
	return map[string]row{
		"a gradient of another dtype": {func(c *gradCall) { c.params["whole"].leaf.SetGrad(ints) }, tensor.ErrDType, `"whole"`, false},
		"a gradient of another shape": {func(c *gradCall) { c.params["whole"].leaf.SetGrad(counted(t, 16)) }, tensor.ErrShape, `"whole"`, false},
		"a gradient that is expanded": {func(c *gradCall) { c.params["whole"].leaf.SetGrad(expanded) }, tensor.ErrLayout, `"whole"`, false},
		"a gradient without memory":   {func(c *gradCall) { c.params["whole"].leaf.SetGrad(none) }, tensor.ErrPlaceholder, `"whole"`, false},
		"a layout without a mesh":     {without(shard.Boxes(map[int]tensor.Box{0: tensor.Whole([]int64{4, 4})}), 0), errors.ErrUnsupported, `"whole"`, false},
		"a rank outside of the mesh":  {without(shard.Rows(2), 3), shard.ErrLayout, `"whole"`, false},
		"a mesh that is not connected": {without(shard.Placed{Mesh: shard.Mesh{Shape: []int{7, 7}},
			Placements: []shard.Placement{shard.Shard(0), shard.Replicate()}}, 0), shard.ErrLayout, "mesh[7 7]", false},
		"a parameter less": {func(c *gradCall) { delete(c.params, "whole") }, group.ErrDisagree, `"whole"`, false},
		"a parameter of another name": {func(c *gradCall) {
			c.params["other"] = c.params["whole"]
			delete(c.params, "whole")
		}, group.ErrDisagree, `"other"`, false},
		"a parameter without a gradient": {func(c *gradCall) {
			if err := c.params["whole"].leaf.RequireGrad(false); err != nil {
				t.Error(err)
			}
		}, group.ErrDisagree, "false", false},
		"a context that has ended": {func(c *gradCall) {
			ctx, cancel := context.WithCancel(c.ctx)
			cancel()
			c.ctx = ctx
		}, context.Canceled, "", false},
		"a negative maximum":       {func(c *gradCall) { c.maxNorm = -1 }, nil, "a 2-norm of -1", true},
		"another maximum":          {func(c *gradCall) { c.maxNorm = 7 }, group.ErrDisagree, "norm of 7", true},
		"no norm":                  {func(c *gradCall) { c.p = math.NaN() }, nil, "NaN-norm", true},
		"another norm":             {func(c *gradCall) { c.p = 1 }, group.ErrDisagree, "1-norm", true},
		"finite norms on one rank": {func(c *gradCall) { c.finite = !c.finite }, group.ErrDisagree, "finite", true},
	}
}

// If the call of one rank fails, all ranks that the meshes join return the error, and a
// refused call leaves the gradients unchanged and can be repeated. synctest reports a rank
// that waits for ever.
func TestGradientCallsFailOnAllRanks(t *testing.T) {
	grid := shard.Mesh{Shape: []int{2, 2}, Ranks: []int{2, 0, 3, 1}}
	for name, c := range spoiled(t) {
		for _, op := range []string{"reduce", "clip"} {
			if c.clip && op == "reduce" {
				continue
			}
			for bad := range 4 {
				t.Run(fmt.Sprintf("%s, %s on rank %d", op, name, bad), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						errs := staying(t.Context(), 4, func(ctx context.Context, pf platform.Platform) error {
							rank := pf.World().Rank()
							call := must.Value(newGradCall(ctx, t, pf, grid))
							if rank == bad {
								c.spoil(call)
							}
							err := call.run(op)
							if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
								return fmt.Errorf("error %v; want %v with %q", err, c.want, c.says)
							}
							if errors.Is(err, collective.ErrBroken) {
								return nil
							}
							fresh := must.Value(freshParams(t, grid, rank))
							for n, p := range fresh {
								if rank != bad && !tensor.Equal(p.leaf.Grad(), call.params[n].leaf.Grad()) {
									return fmt.Errorf("the gradient of %s is %v", n, floats(t, call.params[n].leaf.Grad()))
								}
							}
							again := &gradCall{ctx: ctx, params: fresh, maxNorm: 1, p: 2, comms: call.comms}
							return again.run(op)
						})
						if err := errors.Join(errs...); err != nil {
							t.Error(err)
						}
					})
				})
			}
		}
	}
}

func (c *gradCall) run(op string) error {
	if op == "reduce" {
		return ReduceGrads(c.ctx, c.seq(), c.comms)
	}
	_, err := ClipGradNorm(c.ctx, c.seq(), c.comms, c.maxNorm, c.p, &ClipOptions{Finite: c.finite})
	return err
}

// newGradCall returns a call with parameters that different dimensions of two meshes cut.
func newGradCall(ctx context.Context, t *testing.T, pf platform.Platform, grid shard.Mesh) (*gradCall, error) {
	comms, err := Connect(ctx, pf, grid, shard.Mesh{Shape: []int{4}})
	if err != nil {
		return nil, err
	}
	params, err := freshParams(t, grid, pf.World().Rank())
	return &gradCall{ctx: ctx, params: params, maxNorm: 1, p: 2, comms: comms}, err
}

func freshParams(t *testing.T, grid shard.Mesh, rank int) (map[string]*Param, error) {
	on := func(placements ...shard.Placement) shard.Layout {
		return shard.Placed{Mesh: grid, Placements: placements}
	}
	out := map[string]*Param{}
	for name, layout := range map[string]shard.Layout{
		"whole":   on(shard.Replicate(), shard.Replicate()),
		"rows":    on(shard.Shard(0), shard.Replicate()),
		"columns": on(shard.Replicate(), shard.Shard(1)),
		"flat":    shard.FlatEven(4),
	} {
		p := param(t, counted(t, 4, 4))
		if err := p.SetLayout(layout, rank); err != nil {
			return nil, err
		}
		p.leaf.SetGrad(p.Local().Clone())
		out[name] = p
	}
	return out, nil
}

// If the context of a rank ends while gradients are reduced over one dimension of a mesh,
// this does not leave ranks waiting that it meets only in the next dimension.
func TestReduceGradsInterruptedBetweenDimensions(t *testing.T) {
	for _, op := range []string{"reduce", "clip"} {
		synctest.Test(t, func(t *testing.T) {
			mesh := shard.Mesh{Shape: []int{2, 2}}
			errs := staying(t.Context(), 4, func(ctx context.Context, pf platform.Platform) error {
				comms := must.Value(Connect(ctx, pf, mesh))
				params := must.Value(freshParams(t, mesh, pf.World().Rank()))
				delete(params, "flat")
				call := &gradCall{ctx: ctx, params: params, maxNorm: 1, p: 2, comms: comms}
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				if pf.World().Rank() == 0 {
					call.ctx = ctx
					for dim := range 2 {
						key := line(mesh, dim)
						comms.byLine[key] = &ending{comms.byLine[key], cancel}
					}
				}
				return call.run(op)
			})
			for r, err := range errs {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s: rank %d: %v; want Canceled", op, r, err)
				}
			}
		})
	}
}

// A communicator of one line that was broken before fails the call on all ranks.
func TestGradientCallsOverABrokenLine(t *testing.T) {
	for _, op := range []string{"reduce", "clip"} {
		synctest.Test(t, func(t *testing.T) {
			mesh := shard.Mesh{Shape: []int{2, 2}}
			errs := staying(t.Context(), 4, func(ctx context.Context, pf platform.Platform) error {
				call := must.Value(newGradCall(ctx, t, pf, mesh))
				comm := must.Value(call.comms.Line(mesh, 0))
				if pf.World().Rank()%2 == 0 {
					ended, end := context.WithCancel(ctx)
					end()
					if err := comm.AllReduce(ended, counted(t, 1), collective.Sum); !errors.Is(err, collective.ErrBroken) {
						return err
					}
				}
				before := call.params["flat"].leaf.Grad().Clone()
				err := call.run(op)
				if op == "clip" && !tensor.Equal(before, call.params["flat"].leaf.Grad()) {
					return errors.New("the gradient has changed")
				}
				return err
			})
			for r, err := range errs {
				if !errors.Is(err, collective.ErrBroken) {
					t.Errorf("%s: rank %d: %v; want ErrBroken", op, r, err)
				}
			}
		})
	}
}

// ending cancels a context when a reduction begins.
type ending struct {
	platform.TensorComm
	cancel func()
}

func (e *ending) AllReduce(ctx context.Context, t *tensor.Tensor, op platform.ReduceOp) error {
	e.cancel()
	return e.TensorComm.AllReduce(ctx, t, op)
}

func (e *ending) AllReduceAsync(ctx context.Context, t *tensor.Tensor, op platform.ReduceOp) *platform.Work {
	e.cancel()
	return e.TensorComm.AllReduceAsync(ctx, t, op)
}

// A norm that is not finite on one rank, because of a parameter of that rank alone, is an
// error on all ranks.
func TestClipGradNormRefusesInfinityOfOneRank(t *testing.T) {
	mesh := shard.Mesh{Shape: []int{3}}
	errs := staying(t.Context(), 3, func(ctx context.Context, pf platform.Platform) error {
		comms := must.Value(Connect(ctx, pf, mesh))
		p := param(t, counted(t, 2))
		p.leaf.SetGrad(counted(t, 2))
		if pf.World().Rank() == 1 {
			floats(t, p.leaf.Grad())[0] = float32(math.Inf(1))
		}
		_, err := ClipGradNorm(ctx, inOrder(map[string]*Param{"own": p}), comms, 1, 2, &ClipOptions{Finite: true})
		if floats(t, p.leaf.Grad())[1] != 2 {
			return errors.New("the gradient has changed")
		}
		return err
	})
	for r, err := range errs {
		if e, ok := errors.AsType[*group.Error](err); !ok || !slices.Equal(e.Ranks, []int{1}) || !errors.Is(err, ErrNotFinite) {
			t.Errorf("rank %d: %v; want ErrNotFinite of rank 1", r, err)
		}
	}
}

// Meshes that differ are an error on all ranks, also if one rank has fewer.
func TestConnectRefusesDifferentMeshes(t *testing.T) {
	for name, meshes := range map[string][]shard.Mesh{
		"fewer": nil, "another order": {{Shape: []int{2}, Ranks: []int{1, 0}}}, "more": {{Shape: []int{2}}, {Shape: []int{1, 2}}}, "no mesh": {{Shape: []int{0}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			errs := staying(t.Context(), 2, func(ctx context.Context, pf platform.Platform) error {
				mine := []shard.Mesh{{Shape: []int{2}}}
				if pf.World().Rank() == 1 {
					mine = meshes
				}
				_, err := Connect(ctx, pf, mine...)
				return err
			})
			for r, err := range errs {
				if !errors.Is(err, group.ErrDisagree) {
					t.Errorf("%s: rank %d: %v; want ErrDisagree", name, r, err)
				}
			}
		})
	}
}

// Meshes without common ranks are independent: the stages of a pipeline reduce different
// parameters, each when it wants to.
func TestStagesReduceDifferentParameters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stages := []shard.Mesh{{Shape: []int{2}, Ranks: []int{0, 2}}, {Shape: []int{2}, Ranks: []int{3, 1}}}
		errs := staying(t.Context(), 5, func(ctx context.Context, pf platform.Platform) error {
			comms, err := Connect(ctx, pf, stages...)
			rank := pf.World().Rank()
			if err != nil || rank == 2 || rank == 0 { // the first stage does not call
				return err
			}
			if rank == 4 { // in no mesh
				return ReduceGrads(ctx, inOrder(nil), comms)
			}
			p := param(t, counted(t, 2))
			if err := p.SetLayout(shard.Placed{Mesh: stages[1], Placements: []shard.Placement{shard.Replicate()}}, rank); err != nil {
				return err
			}
			p.leaf.SetGrad(counted(t, 2))
			if err := ReduceGrads(ctx, inOrder(map[string]*Param{"w": p}), comms); err != nil {
				return err
			}
			if got := floats(t, p.leaf.Grad()); !slices.Equal(got, []float32{2, 4}) {
				return fmt.Errorf("the gradient is %v", got)
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
}

func TestComponents(t *testing.T) {
	mesh := func(ranks ...int) shard.Mesh { return shard.Mesh{Shape: []int{len(ranks)}, Ranks: ranks} }
	for want, meshes := range map[string][]shard.Mesh{
		"[]":                {},
		"[[0 1 2 3]]":       {{Shape: []int{2, 2}}},
		"[[0 3] [1 2]]":     {mesh(3, 0), mesh(2, 1)},
		"[[0 1 2 3]] ":      {mesh(3, 0), mesh(2, 1), mesh(0, 2)},
		"[[1 2 5 7] [0 4]]": {mesh(5, 1), mesh(7, 2), mesh(2, 5), mesh(4, 0)},
	} {
		if got := fmt.Sprint(components(meshes)); got != strings.TrimSpace(want) {
			t.Errorf("components(%v) = %s; want %s", meshes, got, want)
		}
	}
}
