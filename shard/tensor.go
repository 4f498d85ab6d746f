package shard

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Tensor is one rank's share of a tensor that a layout spreads over ranks. It
// does not change; the memory of its local tensor may.
type Tensor struct {
	layout Layout
	shape  []int64
	rank   int
	local  *tensor.Tensor
	parts  []Part
	boxes  []tensor.Box
}

// New returns rank's share of a tensor of the given global shape, which local holds: its
// shape must be the layout's LocalShape, also if the rank holds no element. It returns the
// errors of the layout, and [tensor.ErrShape] if local has another shape.
func New(layout Layout, shape []int64, rank int, local *tensor.Tensor) (*Tensor, error) {
	want, err := layout.LocalShape(shape, rank)
	if err != nil {
		return nil, err
	}

	if local == nil {
		return nil, fmt.Errorf("%w: rank %d has no local tensor, want one of shape %v", tensor.ErrShape, rank, want)
	}
	if !slices.Equal(local.Shape(), want) {
		return nil, fmt.Errorf("%w: local tensor %v on rank %d of %v in %v, want shape %v",
			tensor.ErrShape, local, rank, shape, layout, want)
	}

	parts, err := layout.Parts(shape, rank)
	if err != nil {
		return nil, err
	}

	t := &Tensor{layout: layout, shape: slices.Clone(shape), rank: rank, local: local, parts: parts}
	for i, p := range parts {
		if err := p.fits(shape, want); err != nil {
			return nil, fmt.Errorf("part %d on rank %d in %v: %w", i, rank, layout, err)
		}
		t.boxes = append(t.boxes, p.Box)
	}

	return t, nil
}

// Empty is New with a local tensor of zeros that it allocates.
func Empty(layout Layout, dtype tensor.DType, shape []int64, rank int) (*Tensor, error) {
	want, err := layout.LocalShape(shape, rank)
	if err != nil {
		return nil, err
	}
	local, err := tensor.New(dtype, want)
	if err != nil {
		return nil, err
	}
	return New(layout, shape, rank, local)
}

// GlobalShape returns the shape of the whole tensor. It is not to be changed.
func (t *Tensor) GlobalShape() []int64 { return t.shape }

// DType returns the type of the elements.
func (t *Tensor) DType() tensor.DType { return t.local.DType() }

// Layout returns how the tensor is spread over ranks.
func (t *Tensor) Layout() Layout { return t.layout }

// Rank returns the rank that holds the share t.
func (t *Tensor) Rank() int { return t.rank }

// Local returns the memory of the rank's share.
func (t *Tensor) Local() *tensor.Tensor { return t.local }

// Boxes returns the boxes that the rank holds, in the order of [Layout]'s parts. There are
// none if it holds no element. The caller must not change them.
func (t *Tensor) Boxes() []tensor.Box { return t.boxes }

// Part returns the view of the local tensor that holds box i of Boxes, in the
// box's shape. If the layout is flat the local tensor must be contiguous;
// the error wraps [tensor.ErrLayout] otherwise, and [tensor.ErrShape] if
// there is no box i.
func (t *Tensor) Part(i int) (*tensor.Tensor, error) {
	if i < 0 || i >= len(t.parts) {
		return nil, fmt.Errorf("%w: part %d of %d", tensor.ErrShape, i, len(t.parts))
	}

	p := t.parts[i]
	if len(p.Local) == p.Box.Dims() {
		return t.local.Narrow(tensor.Box{Offsets: p.Local, Sizes: p.Box.Sizes})
	}

	run, err := t.local.Narrow(tensor.Box{Offsets: p.Local, Sizes: []int64{p.Box.Volume()}})
	if err != nil {
		return nil, err
	}

	mem, ok := run.Bytes()
	if !ok {
		return nil, fmt.Errorf("part %d: %w: flat local tensor %v is not contiguous", i, tensor.ErrLayout, t.local)
	}
	return tensor.FromBytes(t.DType(), p.Box.Sizes, mem)
}

// fits returns an error unless p lies inside a tensor of the global shape and
// inside the rank's local tensor. It is for layouts of other packages.
func (p Part) fits(shape, local []int64) error {
	if err := p.Box.Check(shape); err != nil {
		return err
	}

	place := tensor.Box{Offsets: p.Local, Sizes: p.Box.Sizes}
	if len(local) != len(shape) {
		place.Sizes = []int64{p.Box.Volume()}
	}

	if err := place.Check(local); err != nil {
		return fmt.Errorf("%w: box %v in the local tensor: %w", ErrLayout, p.Box, err)
	}
	return nil
}

// Zeros is Empty for elements of type E.
func Zeros[E tensor.Element](layout Layout, shape []int64, rank int) (*Tensor, error) {
	return Empty(layout, tensor.DTypeOf[E](), shape, rank)
}

// Values returns the elements of the local tensor as a slice of E, without a copy.
// It returns the errors of [tensor.Values].
func Values[E tensor.Element](t *Tensor) ([]E, error) { return tensor.Values[E](t.local) }
