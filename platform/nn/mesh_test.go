package nn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// gathered returns the whole of a parameter, which the ranks of a mesh cut along dimension
// 0 by the dimensions of the mesh from the first to the last.
func gathered(ctx context.Context, p *Param, mesh shard.Mesh, comms *Comms) (*tensor.Tensor, error) {
	g := autograd.New(ctx).NoGrad()
	v, rows := p.Var(), []int64{p.Shape()[0]}
	for _, n := range mesh.Shape { // rows that are left to be cut
		rows = append(rows, rows[len(rows)-1]/int64(n))
	}
	for dim := len(mesh.Shape) - 1; dim >= 0; dim-- {
		comm, err := comms.Line(mesh, dim)
		if err != nil {
			return nil, err
		}
		v = g.AllGatherConcat(comm, v, 0, rows[dim])
	}
	return v.Data(), g.Err()
}

// A weight that is cut over a mesh is gathered as it was, in whatever order the mesh has
// its ranks.
func TestGatherInMeshOrder(t *testing.T) {
	check := func(ctx context.Context, pf platform.Platform, mesh shard.Mesh) error {
		comms := must.Value(Connect(ctx, pf, mesh))
		whole := counted(t, int64(4*mesh.Size()), 2)
		p := param(t, whole)
		layout := shard.Placed{Mesh: mesh, Placements: slices.Repeat([]shard.Placement{shard.Shard(0)}, len(mesh.Shape))}
		if err := p.SetLayout(layout, pf.World().Rank()); err != nil {
			return err
		}
		got := must.Value(gathered(ctx, p, mesh, comms))
		if !tensor.Equal(got, whole) {
			return fmt.Errorf("%v gathers %v", mesh, floats(t, got))
		}
		return nil
	}
	for _, mesh := range []shard.Mesh{
		{Shape: []int{2}, Ranks: []int{1, 0}},
		{Shape: []int{2, 3}, Ranks: []int{5, 0, 3, 1, 4, 2}},
	} {
		groups := map[string][]group.Group{}
		for _, g := range inproc.New(mesh.Size()) {
			groups["inproc"] = append(groups["inproc"], g)
		}
		for _, g := range tcptest.Meet(t, mesh.Size(), tcptest.ByFile(t, mesh.Size())) {
			groups["tcp"] = append(groups["tcp"], g)
		}
		for name, gs := range groups {
			errs := make([]error, len(gs))
			var wg sync.WaitGroup
			for r, g := range gs {
				wg.Go(func() { errs[r] = check(t.Context(), host.New(g), mesh) })
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	deep.Check(t, func(rt *rapid.T) {
		mesh := drawMesh(rt, rapid.IntRange(1, 8).Draw(rt, "ranks"))
		errs := onRanks(t.Context(), mesh.Size(), func(ctx context.Context, pf platform.Platform) error { return check(ctx, pf, mesh) })
		if err := errors.Join(errs...); err != nil {
			rt.Fatal(err)
		}
	})
}

// The number of a rank in the collectives of a line is its index in the mesh.
func TestLinesAreNumberedInMeshOrder(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		mesh := drawMesh(rt, rapid.IntRange(1, 8).Draw(rt, "ranks"))
		errs := onRanks(t.Context(), mesh.Size(), func(ctx context.Context, pf platform.Platform) error {
			comms := must.Value(Connect(ctx, pf, mesh))
			at := pf.World().Rank()
			if mesh.Ranks != nil {
				at = slices.Index(mesh.Ranks, at)
			}
			for dim, n := range slices.Backward(mesh.Shape) {
				comm := must.Value(comms.Line(mesh, dim))
				if comm.Rank() != at%n || comm.Size() != n {
					return fmt.Errorf("dimension %d of %v: rank %d of %d, want %d of %d", dim, mesh, comm.Rank(), comm.Size(), at%n, n)
				}
				at /= n
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			rt.Fatal(err)
		}
	})
}

// A module that is cut over a mesh in one order is loaded over a mesh in another order, and
// whole, from checkpoints of all formats that ranks save.
func TestModuleOfAPermutedMeshIsSavedAndLoaded(t *testing.T) {
	over := func(ranks ...int) shard.Layout {
		mesh := shard.Mesh{Shape: []int{2, 2}, Ranks: ranks}
		return shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Shard(1), shard.Shard(0)}}
	}
	for name, format := range formats {
		store := new(mem.Store)
		each := func(layout shard.Layout, init Init, f func(ctx context.Context, m *Module, g group.Group) error) {
			t.Helper()
			errs := onRanks(t.Context(), 4, func(ctx context.Context, p platform.Platform) error {
				m := must.Value(cutModel(init, layout, p.World().Rank()))
				g := must.Value(platform.Comm(p.World()))
				return f(ctx, m, g)
			})
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		counting := func(shape []int64) (*tensor.Tensor, error) { return counted(t, shape...), nil }
		each(over(2, 0, 3, 1), counting, func(ctx context.Context, m *Module, g group.Group) error {
			_, err := cairn.Save(ctx, store, cairn.State{"model": m}, &cairn.SaveOptions{Group: g, Format: format})
			return err
		})
		each(over(1, 3, 2, 0), Zeros, func(ctx context.Context, m *Module, g group.Group) error {
			if _, err := cairn.Load(ctx, store, cairn.State{"model": m}, &cairn.LoadOptions{Group: g}); err != nil {
				return err
			}
			want := must.Value(cutModel(counting, over(1, 3, 2, 0), g.Rank()))
			for name, p := range want.Params() {
				if got := m.Param(name).Local(); !tensor.Equal(got, p.Local()) {
					return fmt.Errorf("%s is %v, want %v", name, floats(t, got), floats(t, p.Local()))
				}
			}
			return nil
		})
		state, _, err := cairn.LoadNew(t.Context(), store, nil)
		must.Do(t, err)
		whole := model(counting)
		got, err := platform.Tensors(state)
		must.Do(t, err)
		for param, p := range whole.Params() {
			if !tensor.Equal(got["model."+param], p.Local()) {
				t.Errorf("%s: %s is %v", name, param, got["model."+param])
			}
		}
	}
}
