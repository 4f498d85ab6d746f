package host

import (
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// A part whose elements lie apart is read with the gaps between them where all of
// it is small, or not too large and mostly wanted.
const (
	smallSpan   = 64 << 10
	largestSpan = 1 << 20
)

// cutter reads parts of a tensor that lies in a file in row-major order.
type cutter struct {
	read  func(p []byte, off int64) error
	at    int64 // of the first byte
	shape []int64
}

// fill reads what is inside b, a box of the tensor, into dst, which fits.
func (c *cutter) fill(dst *tensor.Tensor, b tensor.Box) error {
	if b.Empty() {
		return nil
	}
	strides := tensor.RowMajor(c.shape)
	first, last := int64(0), int64(0)
	for d, o := range b.Offsets {
		first += o * strides[d]
		last += (o + b.Sizes[d] - 1) * strides[d]
	}
	size := int64(dst.DType().Size())
	span, want := (last-first+1)*size, dst.NumBytes()
	if mem, ok := dst.Bytes(); ok && span == want {
		return c.read(mem, c.at+first*size)
	}
	if span <= smallSpan || span <= largestSpan && want >= span/4 {
		buf := make([]byte, span)
		if err := c.read(buf, c.at+first*size); err != nil {
			return err
		}
		src, err := tensor.FromStrided(dst.DType(), b.Sizes, strides, 0, buf)
		if err != nil {
			return err
		}
		return tensor.Copy(dst, src)
	}
	return c.halve(dst, b)
}

// halve reads the two halves of a box along its first dimension that has any.
func (c *cutter) halve(dst *tensor.Tensor, b tensor.Box) error {
	d := slices.IndexFunc(b.Sizes, func(n int64) bool { return n > 1 })
	half := b.Sizes[d] / 2
	for _, r := range [][2]int64{{0, half}, {half, b.Sizes[d]}} {
		part := tensor.Box{Offsets: slices.Clone(b.Offsets), Sizes: slices.Clone(b.Sizes)}
		part.Offsets[d] += r[0]
		part.Sizes[d] = r[1] - r[0]
		into, err := dst.Slice(d, r[0], r[1], 1)
		if err != nil {
			return err
		}
		if err := c.fill(into, part); err != nil {
			return err
		}
	}
	return nil
}
