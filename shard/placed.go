package shard

import (
	"fmt"
	"strings"
)

// Placed is DTensor's layout: a mesh and what each of its dimensions does. The
// placements apply from left to right, each to what the ones before it left;
// what StridedShard scatters, a later Shard cuts as if it lay together.
type Placed struct {
	Mesh       Mesh
	Placements []Placement
}

var _ Layout = Placed{}

// Parts implements [Layout]. A rank that is not in the mesh has none.
func (p Placed) Parts(shape []int64, rank int) ([]Part, error) {
	g, err := p.grid(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", p, err)
	}
	return g.parts(shape)
}

// LocalShape implements [Layout].
func (p Placed) LocalShape(shape []int64, rank int) ([]int64, error) {
	g, err := p.grid(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", p, err)
	}
	return g.shape(), nil
}

// String implements [Layout].
func (p Placed) String() string {
	var b strings.Builder
	b.WriteString(p.Mesh.String())
	for _, q := range p.Placements {
		b.WriteByte(' ')
		b.WriteString(q.String())
	}
	return b.String()
}

// grid checks everything before it looks for the rank, so that a bad layout is
// an error on every rank.
func (p Placed) grid(shape []int64, rank int) (grid, error) {
	g, err := wholeGrid(shape)
	if err != nil {
		return nil, err
	}
	cuts, err := p.cuts(len(shape))
	if err != nil {
		return nil, err
	}
	coord, err := p.Mesh.coord(rank)
	if err != nil || coord == nil {
		return nil, err
	}
	for m, d := range cuts {
		if d < 0 {
			continue
		}
		n, i := int64(p.Mesh.Shape[m]), int64(coord[m])
		if q := p.Placements[m]; q.kind == strided {
			g[d], err = g[d].stridedOf(int64(q.split), n, i)
		} else {
			g[d] = g[d].shardOf(n, i)
		}
		if err != nil {
			return nil, err
		}
	}
	return g, nil
}

// cuts returns the tensor dimension that each mesh dimension cuts, -1 for none.
func (p Placed) cuts(dims int) ([]int, error) {
	if len(p.Placements) != len(p.Mesh.Shape) {
		return nil, fmt.Errorf("%w: %d placements for %d mesh dimensions", ErrLayout, len(p.Placements), len(p.Mesh.Shape))
	}
	out := make([]int, len(p.Placements))
	for m, q := range p.Placements {
		d, err := q.on(dims)
		if err != nil {
			return nil, err
		}
		out[m] = d
	}
	return out, nil
}
