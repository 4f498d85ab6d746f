package native

import (
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// fill copies the elements of box out of p, the bytes of s, to dst, which is
// shaped like box. sizes are the chunk's and box is relative to it.
func (g grid) fill(dst *tensor.Tensor, sizes []int64, dtype tensor.DType, box tensor.Box, s span, p []byte) error {
	k := g.rowDims
	parts, err := tensor.FlatBoxes(sizes[:k], s.row0, s.row1)
	if err != nil {
		return err
	}
	inners, err := g.innerBoxes(sizes[k:], int64(dtype.Size()), s)
	if err != nil {
		return err
	}
	for _, rows := range parts {
		// The part of the box in these rows and in the span's bands.
		for _, inner := range inners {
			part := tensor.Box{
				Offsets: slices.Concat(rows.Offsets, inner.Offsets),
				Sizes:   slices.Concat(rows.Sizes, inner.Sizes),
			}
			common, ok := part.Intersect(box)
			if !ok {
				continue
			}
			if err := g.fillPart(dst, sizes, dtype, box, common, s, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// innerBoxes cuts the columns that the span's bands cover into boxes of the
// row's dimensions.
func (g grid) innerBoxes(sizes []int64, elem int64, s span) ([]tensor.Box, error) {
	lo := s.band0 * g.band / elem
	return tensor.FlatBoxes(sizes, lo, lo+g.width(s)/elem)
}

// fillPart copies one box that lies inside both the span and the wanted box.
func (g grid) fillPart(dst *tensor.Tensor, sizes []int64, dtype tensor.DType, box, common tensor.Box, s span, p []byte) error {
	elem := int64(dtype.Size())
	n, k := len(sizes), g.rowDims
	strides := make([]int64, n)
	stride := int64(1)
	for d := n - 1; d >= k; d-- {
		strides[d] = stride
		stride *= sizes[d]
	}
	stride = g.width(s) / elem
	for d := k - 1; d >= 0; d-- {
		strides[d] = stride
		stride *= sizes[d]
	}
	at := -s.row0*(g.width(s)/elem) - s.band0*g.band/elem
	for d := range n {
		at += common.Offsets[d] * strides[d]
	}
	src, err := tensor.FromStrided(dtype, common.Sizes, strides, at, p)
	if err != nil {
		return err
	}
	to, err := dst.Narrow(common.Relative(box.Offsets))
	if err != nil {
		return err
	}
	return tensor.Convert(to, src, tensor.CastAny)
}

// flatRange returns the bytes [lo, hi) of a chunk that box takes, and whether
// they are one run in the row-major order of box's elements.
func flatRange(sizes []int64, box tensor.Box, elem int64) (lo, hi int64, ok bool) {
	whole := true
	for d := len(sizes) - 1; d >= 0; d-- {
		if !whole && box.Sizes[d] != 1 {
			return 0, 0, false
		}
		whole = whole && box.Sizes[d] == sizes[d]
	}
	lo, hi = innerRange(sizes, box, elem)
	return lo, hi, true
}
