package shard

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/tensor"
)

// grid is what a rank holds of each dimension: it holds the elements whose
// every index is in its dimension's spans. The nil grid holds nothing.
type grid []spans

// wholeGrid checks shape and returns the grid of everything.
func wholeGrid(shape []int64) (grid, error) {
	if _, err := tensor.NumElements(shape); err != nil {
		return nil, err
	}
	g := make(grid, len(shape))
	for d, n := range shape {
		g[d] = g[d].add(span{0, n})
	}
	return g, nil
}

// shape returns the shape of the local tensor.
func (g grid) shape() []int64 {
	if g == nil {
		return nowhere()
	}
	out := make([]int64, len(g))
	for d, s := range g {
		out[d] = s.length()
	}
	return out
}

// parts returns the product of the dimensions' spans in row-major order, for a
// tensor of the given global shape.
func (g grid) parts(shape []int64) ([]Part, error) {
	if g == nil {
		return nil, nil
	}
	n := 1
	for _, s := range g {
		if n *= len(s); n > maxParts {
			return nil, fmt.Errorf("%w: more than %d parts on one rank", ErrLayout, maxParts)
		}
	}
	if n == 0 {
		return []Part{g.empty(shape)}, nil
	}
	starts := g.starts()
	out := make([]Part, n)
	for i := range out {
		out[i] = g.part(i, starts)
	}
	return out, nil
}

// starts returns where each span of each dimension begins in the local tensor.
func (g grid) starts() [][]int64 {
	out := make([][]int64, len(g))
	for d, s := range g {
		var at int64
		for _, p := range s {
			out[d] = append(out[d], at)
			at += p.hi - p.lo
		}
	}
	return out
}

// part returns the i-th part in row-major order.
func (g grid) part(i int, starts [][]int64) Part {
	p := newPart(len(g))
	for d := len(g) - 1; d >= 0; d-- {
		k := i % len(g[d])
		i /= len(g[d])
		p.Box.Offsets[d] = g[d][k].lo
		p.Box.Sizes[d] = g[d][k].hi - g[d][k].lo
		p.Local[d] = starts[d][k]
	}
	return p
}

// empty returns the one part of a grid without elements. It has the shape of
// the local tensor and stands where PyTorch puts it, at the end of the
// dimensions of which nothing is held: there it is no other shard's neighbour
// and has an offset of its own.
func (g grid) empty(shape []int64) Part {
	p := newPart(len(g))
	for d, s := range g {
		p.Box.Offsets[d] = shape[d]
		if len(s) > 0 {
			p.Box.Offsets[d] = s[0].lo
		}
		p.Box.Sizes[d] = s.length()
	}
	return p
}

// newPart returns a part of dims dimensions in one allocation.
func newPart(dims int) Part {
	v := make([]int64, 3*dims)
	return Part{
		Box:   tensor.Box{Offsets: v[:dims:dims], Sizes: v[dims : 2*dims : 2*dims]},
		Local: v[2*dims:],
	}
}
