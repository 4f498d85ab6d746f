package tensor

import (
	"cmp"
	"slices"
)

// axis is one loop of a walk over two tensors at once; the strides count
// elements.
type axis struct {
	n        int64
	dst, src int64
}

// axesOf returns the fewest loops that visit every element of two tensors of
// one shape, the loop over dst's closest neighbours last. The order of the
// visits is not that of the dimensions: dst's memory is walked upwards, and
// dimensions that are one stretch on both sides become one loop.
func axesOf(dst, src *Tensor) []axis {
	axes := make([]axis, 0, len(dst.shape))
	for d, n := range dst.shape {
		if n != 1 {
			axes = append(axes, axis{n, dst.strides[d], src.strides[d]})
		}
	}
	slices.SortStableFunc(axes, func(a, b axis) int {
		return cmp.Or(cmp.Compare(b.dst, a.dst), cmp.Compare(b.src, a.src))
	})
	merged := axes[:0]
	for _, in := range axes {
		if k := len(merged) - 1; k >= 0 && merged[k].dst == in.n*in.dst && merged[k].src == in.n*in.src {
			merged[k] = axis{merged[k].n * in.n, in.dst, in.src}
		} else {
			merged = append(merged, in)
		}
	}
	return merged
}

// splitRun takes off the last axis where its elements follow each other on both
// sides, and returns their number, which is one otherwise.
func splitRun(axes []axis) ([]axis, int64) {
	outer, in := splitLast(axes)
	if in.dst == 1 && in.src == 1 {
		return outer, in.n
	}
	return axes, 1
}

// splitLast takes off the last axis; where there is none, it is a loop of one.
func splitLast(axes []axis) ([]axis, axis) {
	k := len(axes) - 1
	if k < 0 {
		return nil, axis{n: 1}
	}
	return axes[:k], axes[k]
}

// splitPlane takes off the axes along which dst and src have their closest
// neighbours; one that is both comes back as cols.
func splitPlane(axes []axis) (outer []axis, rows, cols axis) {
	outer, cols = splitLast(axes)
	if len(outer) == 0 {
		return nil, axis{n: 1}, cols
	}
	k := 0
	for i, a := range outer {
		if a.src <= outer[k].src {
			k = i
		}
	}
	rows = outer[k]
	return slices.Delete(outer, k, k+1), rows, cols
}

// cursor stands at one step of nested loops.
type cursor struct {
	axes     []axis
	index    []int64
	dst, src int64 // the elements here
	more     bool  // whether there is a here
}

func startAt(axes []axis) *cursor {
	return &cursor{axes: axes, index: make([]int64, len(axes)), more: true}
}

// next goes one step on, the last axis fastest.
func (c *cursor) next() {
	for k, a := range slices.Backward(c.axes) {
		if c.index[k]++; c.index[k] < a.n {
			c.dst, c.src = c.dst+a.dst, c.src+a.src
			return
		}
		c.index[k] = 0
		c.dst, c.src = c.dst-(a.n-1)*a.dst, c.src-(a.n-1)*a.src
	}
	c.more = false
}
