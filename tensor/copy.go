package tensor

import (
	"cmp"
	"fmt"
	"slices"
)

// Copy copies src's elements into dst, bit by bit. Shapes and dtypes must be
// equal (the error wraps [ErrShape] or [ErrDType]), and no two elements of dst
// may share a place: an expanded dst is an error that wraps [ErrLayout], a
// placeholder one that wraps [ErrPlaceholder]. The result is undefined if dst and src
// overlap in memory, or dst overlaps itself in another way.
func Copy(dst, src *Tensor) error {
	if err := checkPair("copy", dst, src); err != nil {
		return err
	}
	if dst.dtype != src.dtype {
		return fmt.Errorf("copy %v to %v: %w", src, dst, ErrDType)
	}
	copyElements(dst, src)
	return nil
}

// checkPair returns an error unless dst has a place for each element of src.
func checkPair(op string, dst, src *Tensor) error {
	if !slices.Equal(dst.shape, src.shape) {
		return fmt.Errorf("%s %v to %v: %w", op, src, dst, ErrShape)
	}
	if dst.placeholder {
		return fmt.Errorf("%s %v to %v: %w", op, src, dst, ErrPlaceholder)
	}

	for d, n := range dst.shape {
		if n > 1 && dst.strides[d] == 0 {
			return fmt.Errorf("%s %v to %v: %w: the destination is expanded in dimension %d", op, src, dst, ErrLayout, d)
		}
	}

	return nil
}

// copyElements copies between tensors that are known to fit.
func copyElements(dst, src *Tensor) {
	if dst.NumElements() == 0 {
		return
	}

	axes, run := splitRun(axesOf(dst, src))
	if run > 1 || len(axes) == 0 {
		copyRuns(dst.memory(), src.memory(), run, dst.size(), axes)
		return
	}

	switch d, s := dst.memory(), src.memory(); dst.size() {
	case 1:
		copySingles[[1]byte](d, s, axes)
	case 2:
		copySingles[[2]byte](d, s, axes)
	case 4:
		copySingles[[4]byte](d, s, axes)
	case 8:
		copySingles[[8]byte](d, s, axes)
	case 16:
		copySingles[[16]byte](d, s, axes)
	}
}

// copyRuns copies runs of elements that follow each other on both sides.
func copyRuns(dst, src []byte, run, size int64, axes []axis) {
	run *= size
	outer, rows := splitLast(axes)
	rows.dst, rows.src = rows.dst*size, rows.src*size
	for c := startAt(outer); c.more; c.next() {
		d, s := c.dst*size, c.src*size
		for range rows.n {
			copy(dst[d:d+run], src[s:s+run])
			d, s = d+rows.dst, s+rows.src
		}
	}
}

// copySingles copies elements one at a time, a plane of two axes after the
// other. E is an array of bytes, so that it may lie at any address.
func copySingles[E any](dst, src []byte, axes []axis) {
	d, s := elements[E](dst), elements[E](src)
	outer, rows, cols := splitPlane(axes)
	for c := startAt(outer); c.more; c.next() {
		copyPlane(d[c.dst:], s[c.src:], rows, cols)
	}
}

// A tile is the part that copyPlane turns at a time: few enough of src's lines of memory that
// they stay in the nearest cache even if their distance is a power of two, and more of dst's,
// which are written once each.
const tileRows, tileCols = 64, 16

// copyPlane copies along both axes. If src's neighbours lie along rows and
// dst's along cols, going tile by tile uses each line of memory whole while it is
// in the cache.
func copyPlane[E any](dst, src []E, rows, cols axis) {
	width := int64(tileCols)
	if rows.n == 1 || cols.src <= rows.src {
		width = cols.n
	}

	for r0 := int64(0); r0 < rows.n; r0 += tileRows {
		for c0 := int64(0); c0 < cols.n; c0 += width {
			n := min(width, cols.n-c0)
			for r := r0; r < min(r0+tileRows, rows.n); r++ {
				copyLine(dst[r*rows.dst+c0*cols.dst:], src[r*rows.src+c0*cols.src:], n, cols)
			}
		}
	}
}

// copyLine copies four elements at a time: the additions and checks of one run during
// the loads of another.
func copyLine[E any](dst, src []E, n int64, a axis) {
	d, s := int64(0), int64(0)
	for ; n >= 4; n -= 4 {
		dst[d] = src[s]
		dst[d+a.dst] = src[s+a.src]
		dst[d+2*a.dst] = src[s+2*a.src]
		dst[d+3*a.dst] = src[s+3*a.src]
		d, s = d+4*a.dst, s+4*a.src
	}

	for range n {
		dst[d] = src[s]
		d, s = d+a.dst, s+a.src
	}
}

// axis is one loop of a walk over two tensors at once; the strides count
// elements.
type axis struct {
	n        int64
	dst, src int64
}

// axesOf returns the fewest loops that visit every element of two tensors of one
// shape. They are sorted so that dst's memory is walked upwards, and dimensions that
// are contiguous on both sides become one loop.
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

// splitRun takes off the last axis if its elements follow each other on both
// sides, and returns their number, which is one otherwise.
func splitRun(axes []axis) ([]axis, int64) {
	outer, in := splitLast(axes)
	if in.dst == 1 && in.src == 1 {
		return outer, in.n
	}
	return axes, 1
}

// splitLast takes off the last axis; of no axes it is a loop of one.
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

// cursor is the position in nested loops.
type cursor struct {
	axes     []axis
	index    []int64
	dst, src int64 // the elements here
	more     bool  // false after the last step
}

func startAt(axes []axis) *cursor {
	return &cursor{axes: axes, index: make([]int64, len(axes)), more: true}
}

// next advances by one step, the last axis fastest.
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
