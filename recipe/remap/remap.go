// Package remap has index maps between tensors: a Piece says which element of one tensor
// becomes which element of another. Splitting, joining, stacking, transposing and
// reshaping tensors are such maps, so a part of the result can be read without the rest.
// The package does no I/O. The contract is at Piece, Cut and Exact.
package remap

import (
	"cmp"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Piece maps a grid of elements of one tensor, From, to a grid of another one, To. The
// element at the grid's index (i0, i1, …) lies in dimension d of To at
//
//	To[d] + Σ ik·Axes[k].ToStep, over all k with Axes[k].To == d
//
// and in From accordingly. No two indices have the same element, on either side: the
// steps of a dimension are as far apart as the axes with smaller steps are long.
type Piece struct {
	// To and From are the positions of the first element.
	To, From []int64
	Axes     []Axis
}

// Axis is one dimension of the grid of a Piece.
type Axis struct {
	Size int64
	// To and From are the dimensions of the tensors in which the axis lies, and ToStep
	// and FromStep the distances between neighbours along these dimensions.
	To, From         int
	ToStep, FromStep int64
}

// Volume returns the number of elements.
func (p *Piece) Volume() int64 {
	n := int64(1)
	for _, a := range p.Axes {
		n *= a.Size
	}
	return n
}

// Inverse returns the map in the other direction.
func (p *Piece) Inverse() Piece {
	out := Piece{To: p.From, From: p.To, Axes: slices.Clone(p.Axes)}
	for i, a := range p.Axes {
		out.Axes[i] = Axis{Size: a.Size, To: a.From, From: a.To, ToStep: a.FromStep, FromStep: a.ToStep}
	}
	return out
}

// Simplify returns the same map with as few axes as possible.
func (p *Piece) Simplify() Piece {
	axes := slices.DeleteFunc(slices.Clone(p.Axes), func(a Axis) bool { return a.Size == 1 })
	slices.SortStableFunc(axes, func(a, b Axis) int {
		return cmp.Or(cmp.Compare(a.To, b.To), cmp.Compare(a.From, b.From), cmp.Compare(b.ToStep, a.ToStep))
	})

	out := axes[:0]
	for _, a := range axes {
		if n := len(out); n > 0 {
			if last := &out[n-1]; last.To == a.To && last.From == a.From &&
				last.ToStep == a.ToStep*a.Size && last.FromStep == a.FromStep*a.Size {
				last.Size, last.ToStep, last.FromStep = last.Size*a.Size, a.ToStep, a.FromStep
				continue
			}
		}
		out = append(out, a)
	}

	return Piece{To: p.To, From: p.From, Axes: out}
}

// Cut returns the parts of p with elements inside box, a box of To.
func (p *Piece) Cut(box tensor.Box) []Piece {
	parts := []Piece{{To: p.To, From: p.From, Axes: p.Axes}}
	for d := range p.To {
		var axes []int // of this dimension, the largest step first
		for k, a := range p.Axes {
			if a.To == d {
				axes = append(axes, k)
			}
		}

		slices.SortFunc(axes, func(a, b int) int { return cmp.Compare(p.Axes[b].ToStep, p.Axes[a].ToStep) })
		var ranges [][]interval // one interval for each axis
		p.within(axes, p.To[d], box.Offsets[d], box.End(d), nil, &ranges)
		if len(ranges) == 0 {
			return nil
		}

		var next []Piece
		for _, q := range parts {
			for _, r := range ranges {
				next = append(next, q.narrow(axes, r))
			}
		}

		parts = next
	}

	return parts
}

// interval is a range of indices of an axis.
type interval struct{ at, n int64 }

// within appends to out the ranges of the axes with elements in [lo, hi). at is the position
// of their first element, and before are the ranges of the axes before.
func (p *Piece) within(axes []int, at, lo, hi int64, before []interval, out *[][]interval) {
	last := at + p.span(axes)
	switch {
	case last < lo || at >= hi:
		return
	case at >= lo && last < hi: // all of it, also if there are no axes left
		r := slices.Clone(before)
		for _, k := range axes {
			r = append(r, interval{0, p.Axes[k].Size})
		}
		*out = append(*out, r)
		return
	}

	a, rest := &p.Axes[axes[0]], axes[1:]
	inner := p.span(rest)
	first := max(0, ceil(lo-at-inner, a.ToStep))
	end := min(a.Size, ceil(hi-at, a.ToStep)) // one past the last index with elements below hi
	partial := func(i int64) bool { return at+i*a.ToStep < lo || at+i*a.ToStep+inner >= hi }
	one := func(i int64) {
		p.within(rest, at+i*a.ToStep, lo, hi, append(slices.Clone(before), interval{i, 1}), out)
	}
	if first < end && partial(first) {
		one(first)
		first++
	}

	tail := first < end && partial(end-1)
	if tail {
		end--
	}

	if first < end {
		r := append(slices.Clone(before), interval{first, end - first})
		for _, k := range rest {
			r = append(r, interval{0, p.Axes[k].Size})
		}
		*out = append(*out, r)
	}

	if tail {
		one(end)
	}
}

// span returns the distance from the first to the last element along the axes, in To.
func (p *Piece) span(axes []int) int64 {
	n := int64(0)
	for _, k := range axes {
		n += (p.Axes[k].Size - 1) * p.Axes[k].ToStep
	}
	return n
}

// ceil returns a/b, rounded up, for a positive b.
func ceil(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

// narrow returns the part of p with the given ranges of axes.
func (p *Piece) narrow(axes []int, ranges []interval) Piece {
	out := Piece{To: slices.Clone(p.To), From: slices.Clone(p.From), Axes: slices.Clone(p.Axes)}
	for n, k := range axes {
		a, r := &out.Axes[k], ranges[n]
		out.To[a.To] += r.at * a.ToStep
		out.From[a.From] += r.at * a.FromStep
		a.Size = r.n
	}
	return out
}

// Split divides p into two along an axis of more than one index.
func (p *Piece) Split(axis int) (Piece, Piece) {
	n := p.Axes[axis].Size
	half := n / 2
	return p.narrow([]int{axis}, []interval{{0, half}}), p.narrow([]int{axis}, []interval{{half, n - half}})
}

// FromBox returns the smallest box of From that has all elements of p.
func (p *Piece) FromBox() tensor.Box {
	b := tensor.Box{Offsets: p.From, Sizes: make([]int64, len(p.From))}
	for d := range b.Sizes {
		b.Sizes[d] = 1
	}
	for _, a := range p.Axes {
		b.Sizes[a.From] += (a.Size - 1) * a.FromStep
	}
	return b
}

// ToBox returns the smallest box of To that has all elements of p.
func (p *Piece) ToBox() tensor.Box {
	q := p.Inverse()
	return q.FromBox()
}
