package tensor

import (
	"fmt"
	"slices"
)

// Narrow returns the part of t inside b, sharing t's memory.
func (t *Tensor) Narrow(b Box) (*Tensor, error) {
	if err := b.Check(t.shape); err != nil {
		return nil, fmt.Errorf("narrow %v: %w", t, err)
	}
	return t.narrow(b), nil
}

// narrow is [Tensor.Narrow] for a box that is known to lie inside t.
func (t *Tensor) narrow(b Box) *Tensor {
	at := t.offset
	for d, o := range b.Offsets {
		at += o * t.strides[d]
	}
	return t.view(b.Sizes, t.strides, at)
}

// Slice returns every step-th index from start to before end of dimension dim,
// sharing t's memory. The interval must lie inside the dimension, and step must
// be positive.
func (t *Tensor) Slice(dim int, start, end, step int64) (*Tensor, error) {
	if err := t.checkDim(dim); err != nil {
		return nil, fmt.Errorf("slice: %w", err)
	}
	if start < 0 || end < start || end > t.shape[dim] || step < 1 {
		return nil, fmt.Errorf("slice %v: %w: [%d:%d:%d] in dimension %d", t, ErrShape, start, end, step, dim)
	}
	shape, strides := slices.Clone(t.shape), slices.Clone(t.strides)
	shape[dim] = 0
	if end > start {
		shape[dim] = (end-start-1)/step + 1
	}
	// A single index has no neighbour, and the product could overflow.
	if shape[dim] > 1 {
		strides[dim] *= step
	}
	return t.view(shape, strides, t.offset+start*t.strides[dim]), nil
}

// Transpose returns t with dimensions a and b exchanged, sharing t's memory.
func (t *Tensor) Transpose(a, b int) (*Tensor, error) {
	for _, dim := range []int{a, b} {
		if err := t.checkDim(dim); err != nil {
			return nil, fmt.Errorf("transpose: %w", err)
		}
	}
	shape, strides := slices.Clone(t.shape), slices.Clone(t.strides)
	shape[a], shape[b] = shape[b], shape[a]
	strides[a], strides[b] = strides[b], strides[a]
	return t.view(shape, strides, t.offset), nil
}

// Permute returns t with its dimensions in the given order, which must name
// each one once, sharing t's memory.
func (t *Tensor) Permute(dims ...int) (*Tensor, error) {
	if len(dims) != len(t.shape) {
		return nil, fmt.Errorf("permute %v: %w: %d dimensions given", t, ErrShape, len(dims))
	}
	shape, strides := make([]int64, len(dims)), make([]int64, len(dims))
	seen := make([]bool, len(dims))
	for to, from := range dims {
		if err := t.checkDim(from); err != nil {
			return nil, fmt.Errorf("permute: %w", err)
		}
		if seen[from] {
			return nil, fmt.Errorf("permute %v: %w: dimension %d twice", t, ErrShape, from)
		}
		seen[from] = true
		shape[to], strides[to] = t.shape[from], t.strides[from]
	}
	return t.view(shape, strides, t.offset), nil
}

// Expand returns t repeated to the given shape, sharing t's memory: dimensions
// of size one take any size, and new ones may come in front. The elements of an
// expanded dimension are one and the same, so the view is one to read from.
func (t *Tensor) Expand(shape []int64) (*Tensor, error) {
	if _, err := NumBytes(t.dtype, shape); err != nil {
		return nil, fmt.Errorf("expand %v: %w", t, err)
	}
	added := len(shape) - len(t.shape)
	if added < 0 {
		return nil, fmt.Errorf("expand %v: %w: %v has fewer dimensions", t, ErrShape, shape)
	}
	strides := make([]int64, len(shape))
	for d, n := range t.shape {
		switch {
		case shape[added+d] == n:
			strides[added+d] = t.strides[d]
		case n != 1:
			return nil, fmt.Errorf("expand %v: %w: dimension %d does not become %d", t, ErrShape, d, shape[added+d])
		}
	}
	return t.view(slices.Clone(shape), strides, t.offset), nil
}

func (t *Tensor) checkDim(dim int) error {
	if dim < 0 || dim >= len(t.shape) {
		return fmt.Errorf("%v: %w: no dimension %d", t, ErrShape, dim)
	}
	return nil
}
