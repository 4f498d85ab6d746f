package torchdcp

import (
	"cmp"
	"context"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/tensor"
)

// picker copies a box of a tensor out of bytes that come in order. It reads them
// in pieces, each from the first to the last element of a part of the box, in the
// order in which they lie, so that nothing is made twice unless elements lie in
// each other's way.
type picker struct {
	src   *sequence
	t     *torchsave.Tensor
	box   tensor.Box     // relative to t
	dst   *tensor.Tensor // of the box's shape
	piece int64          // in elements
	order []int          // the dimensions, the largest stride first
	buf   []byte
}

// pick fills dst with a box of t. It takes about piece bytes of memory.
func pick(ctx context.Context, src *sequence, t *torchsave.Tensor, box tensor.Box, dst *tensor.Tensor, piece int64) error {
	p := &picker{src: src, t: t, box: box, dst: dst, piece: max(1, piece/int64(t.DType.Size()))}
	for d := range t.Shape {
		p.order = append(p.order, d)
	}
	slices.SortStableFunc(p.order, func(a, b int) int { return cmp.Compare(t.Strides[b], t.Strides[a]) })
	if box.Empty() {
		return nil
	}
	return p.fill(ctx, box)
}

// span returns how many elements lie from the first to the last one of b.
func (p *picker) span(b tensor.Box) int64 {
	n := int64(1)
	for d, size := range b.Sizes {
		n += (size - 1) * p.t.Strides[d]
	}
	return n
}

// fill copies a part of the box, in one piece or, along the dimension whose
// neighbours are farthest apart, in several.
func (p *picker) fill(ctx context.Context, b tensor.Box) error {
	if p.span(b) <= p.piece {
		return p.copy(ctx, b)
	}
	d := p.order[slices.IndexFunc(p.order, func(d int) bool { return b.Sizes[d] > 1 })]
	one := part(b, d, 0, 1)
	n := int64(1)
	if s := p.span(one); s < p.piece {
		n += (p.piece - s) / p.t.Strides[d]
	}
	for at := int64(0); at < b.Sizes[d]; at += n {
		if err := p.fill(ctx, part(b, d, at, min(n, b.Sizes[d]-at))); err != nil {
			return err
		}
	}
	return nil
}

// part returns n indexes of dimension d of b, from at on.
func part(b tensor.Box, d int, at, n int64) tensor.Box {
	out := tensor.Box{Offsets: slices.Clone(b.Offsets), Sizes: slices.Clone(b.Sizes)}
	out.Offsets[d] += at
	out.Sizes[d] = n
	return out
}

// copy reads all that b spans and copies its elements.
func (p *picker) copy(ctx context.Context, b tensor.Box) error {
	elem := int64(p.t.DType.Size())
	off := int64(0)
	for d, o := range b.Offsets {
		off += o * p.t.Strides[d]
	}
	n := p.span(b) * elem
	if int64(cap(p.buf)) < n {
		p.buf = make([]byte, n)
	}
	if err := p.src.readAt(ctx, p.buf[:n], p.t.Offset+off*elem); err != nil {
		return err
	}
	p.t.Resolve(p.buf[:n])
	src, err := tensor.FromStrided(p.t.DType, b.Sizes, p.t.Strides, 0, p.buf[:n])
	if err != nil {
		return err
	}
	dst, err := p.dst.Narrow(b.Relative(p.box.Offsets))
	if err != nil {
		return err
	}
	return tensor.Convert(dst, src, tensor.CastAny)
}
