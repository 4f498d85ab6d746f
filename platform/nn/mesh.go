package nn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/shard"
)

// Comms has the tensor collectives of this rank over some meshes. [Connect] makes it.
type Comms struct {
	byLine map[string]platform.TensorComm
	rank   int
	// joined is of all ranks that the meshes join with this one: the ranks of its meshes,
	// of their meshes and so on. It is nil if the rank is in no mesh.
	joined platform.TensorComm
}

// Connect makes the groups of all dimensions of the meshes. The ranks of the meshes are ranks
// of the world of p. It is a collective call of the world, with the same meshes on all ranks;
// other ones are an error on all ranks that wraps [group.ErrDisagree].
//
// Give Connect the meshes of one model. [ReduceGrads] and [ClipGradNorm] are calls of all
// ranks that these meshes join, with the same parameters. The stages of a pipeline have
// different parameters, so a mesh that joins them needs a Connect of its own.
func Connect(ctx context.Context, p platform.Platform, meshes ...shard.Mesh) (*Comms, error) {
	tensors, err := platform.As[platform.TensorComms](p)
	if err != nil {
		return nil, err
	}

	if err := sameMeshes(ctx, p, meshes); err != nil {
		return nil, err
	}

	c := &Comms{byLine: map[string]platform.TensorComm{}, rank: p.World().Rank()}
	split := func(parts [][]int) (platform.TensorComm, error) {
		g, err := p.Split(ctx, p.World(), parts)
		if err != nil || g == nil {
			return nil, err
		}
		return tensors.TensorComm(g)
	}
	for _, mesh := range meshes {
		if err := mesh.Check(); err != nil {
			return nil, err
		}
		for dim := range mesh.Shape {
			comm, err := split(lines(mesh, dim))
			if err != nil {
				return nil, fmt.Errorf("groups of dimension %d of %v: %w", dim, mesh, err)
			}
			if comm != nil {
				c.byLine[line(mesh, dim)] = comm
			}
		}
	}

	if parts := components(meshes); len(parts) > 0 {
		if c.joined, err = split(parts); err != nil {
			return nil, fmt.Errorf("groups of the ranks that meshes join: %w", err)
		}
	}
	return c, nil
}

// sameMeshes returns an error on all ranks if the meshes of two ranks differ.
func sameMeshes(ctx context.Context, p platform.Platform, meshes []shard.Mesh) error {
	all, err := platform.AllGather(ctx, p, p.World(), group.JSON[string](), fmt.Sprint(meshes))
	if err != nil {
		return fmt.Errorf("connect %v: %w", meshes, err)
	}

	for r, other := range all {
		if other != all[0] {
			return fmt.Errorf("connect: rank 0 has %s, and rank %d has %s: %w", all[0], r, other, group.ErrDisagree)
		}
	}

	return nil
}

// Line returns the collectives of this rank and those ranks of a mesh that differ from it
// only in dimension dim. They are numbered in the order of the mesh, so that the rank with
// index i of the dimension is rank i. It is local. The error for a mesh that was not given
// to [Connect], or that this rank is not in, wraps [shard.ErrLayout].
func (c *Comms) Line(mesh shard.Mesh, dim int) (platform.TensorComm, error) {
	if c == nil {
		return nil, fmt.Errorf("no groups for %v: %w", mesh, shard.ErrLayout)
	}
	comm := c.byLine[line(mesh, dim)]
	if comm == nil {
		return nil, fmt.Errorf("no group of rank %d for dimension %d of %v: %w", c.rank, dim, mesh, shard.ErrLayout)
	}
	return comm, nil
}

// agree lets all ranks that the meshes join go on or fail together; see [platform.Agree].
func (c *Comms) agree(ctx context.Context, op group.Op, call string, failed error) error {
	if c != nil && c.joined != nil {
		return platform.Agree(ctx, c.joined, op, call, failed)
	}
	if failed != nil {
		return fmt.Errorf("%s: %w", op, failed)
	}
	return nil
}

func line(mesh shard.Mesh, dim int) string { return fmt.Sprintf("%v %d", mesh, dim) }

// components returns the sets of ranks that the meshes join, each in ascending order.
func components(meshes []shard.Mesh) [][]int {
	var out [][]int
	for _, mesh := range meshes {
		all := mesh.Ranks
		if all == nil {
			for r := range mesh.Size() {
				all = append(all, r)
			}
		}

		joined := slices.Clone(all)
		out = slices.DeleteFunc(out, func(other []int) bool {
			common := slices.ContainsFunc(other, func(r int) bool { return slices.Contains(all, r) })
			if common {
				joined = append(joined, other...)
			}
			return common
		})
		slices.Sort(joined)
		out = append(out, slices.Compact(joined))
	}

	return out
}

// lines returns the ranks of the mesh in lists: the ranks of one list differ only in
// dimension dim.
func lines(mesh shard.Mesh, dim int) [][]int {
	step := 1 // from a rank to its neighbour in the line
	for _, n := range mesh.Shape[dim+1:] {
		step *= n
	}

	var out [][]int
	for first := range mesh.Size() {
		if first/step%mesh.Shape[dim] != 0 {
			continue
		}

		var l []int
		for i := range mesh.Shape[dim] {
			at := first + i*step
			if mesh.Ranks != nil {
				at = mesh.Ranks[at]
			}
			l = append(l, at)
		}

		out = append(out, l)
	}

	return out
}

// spread is how the ranks of a mesh share a tensor: which dimensions of the mesh cut it.
// The others replicate it.
type spread struct {
	mesh shard.Mesh
	cut  []bool
}

// dims returns the dimensions, of more than one rank, that cut the tensor, or that
// replicate it.
func (s spread) dims(cut bool) []int {
	var out []int
	for d, c := range s.cut {
		if c == cut && s.mesh.Shape[d] > 1 {
			out = append(out, d)
		}
	}
	return out
}

// spreadOf returns how the ranks share p. A parameter without a layout belongs to
// one rank alone.
func spreadOf(p *Param) (spread, error) {
	if p.sharded == nil {
		return spread{}, nil
	}

	var s spread
	switch l := p.sharded.Layout().(type) {
	case shard.Placed:
		s = spread{l.Mesh, make([]bool, len(l.Placements))}
		for d, at := range l.Placements {
			s.cut[d] = at != shard.Replicate()
		}
	case shard.Flat:
		if err := disjoint(l.Intervals); err != nil {
			return s, err
		}
		s = spread{shard.Mesh{Shape: []int{max(l.Even, len(l.Intervals))}}, []bool{true}}
	case shard.Matrix:
		s = matrixSpread(l)
	default:
		return s, fmt.Errorf("a layout without a mesh, %v: %w", l, errors.ErrUnsupported)
	}

	at := p.sharded.Rank()
	if s.mesh.Ranks != nil {
		at = slices.Index(s.mesh.Ranks, at)
	}
	if at < 0 || at >= s.mesh.Size() {
		return s, fmt.Errorf("rank %d is not in the layout %v: %w", p.sharded.Rank(), p.sharded.Layout(), shard.ErrLayout)
	}
	return s, nil
}

// disjoint refuses intervals with common elements, which a flat layout may have: it does
// not say which ranks are replicas.
func disjoint(intervals [][2]int64) error {
	sorted := slices.SortedFunc(slices.Values(intervals), func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
	end := int64(0)
	for _, v := range sorted {
		if v[0] < end && v[0] < v[1] {
			return fmt.Errorf("a flat layout whose intervals overlap: %w", errors.ErrUnsupported)
		}
		end = max(end, v[1])
	}
	return nil
}

func matrixSpread(m shard.Matrix) spread {
	s := spread{shard.Mesh{Shape: m.Device, Ranks: m.Ranks}, make([]bool, len(m.Device))}
	for _, axes := range m.TensorMap {
		for _, a := range axes {
			if a >= 0 {
				s.cut[len(s.cut)-1-a] = true
			}
		}
	}

	// The interleaved axis is inside of a rank if the ranks fill the others.
	axis := slices.Index(m.Names, m.Interleaved)
	whole := shard.Mesh{Shape: m.Device}.Size()
	if m.Interleaved != "" && m.Ranks != nil && axis >= 0 && len(m.Ranks)*m.Device[axis] == whole {
		s.mesh.Shape = slices.Delete(slices.Clone(m.Device), axis, axis+1)
		s.cut = slices.Delete(s.cut, axis, axis+1)
	}
	return s
}
