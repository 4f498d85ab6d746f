package tensor

import (
	"fmt"
	"slices"
)

// Cat joins tensors along dimension dim, in memory of its own. There must be one
// at least; dtypes must be equal, and so must the sizes of all other dimensions.
func Cat(dim int, ts ...*Tensor) (*Tensor, error) {
	if len(ts) == 0 {
		return nil, fmt.Errorf("cat: %w: no tensors", ErrShape)
	}
	shape, err := joined(dim, ts)
	if err != nil {
		return nil, fmt.Errorf("cat: %w", err)
	}
	out, err := New(ts[0].dtype, shape)
	if err != nil {
		return nil, fmt.Errorf("cat: %w", err)
	}
	at := make([]int64, len(shape))
	for _, t := range ts {
		copyElements(out.narrow(Box{Offsets: at, Sizes: t.shape}), t)
		at[dim] += t.shape[dim]
	}
	return out, nil
}

// joined returns the shape of what Cat makes.
func joined(dim int, ts []*Tensor) ([]int64, error) {
	if err := ts[0].checkDim(dim); err != nil {
		return nil, err
	}
	shape := slices.Clone(ts[0].shape)
	for i, t := range ts[1:] {
		if t.dtype != ts[0].dtype {
			return nil, fmt.Errorf("%w: tensor %d is %v, the first %v", ErrDType, i+1, t, ts[0])
		}
		if !sameBut(dim, t.shape, shape) {
			return nil, fmt.Errorf("%w: tensor %d is %v, the first %v", ErrShape, i+1, t, ts[0])
		}
		shape[dim] += t.shape[dim]
		if _, err := NumElements(shape); err != nil {
			return nil, err
		}
	}
	return shape, nil
}

// sameBut reports whether a and b are the same but for dimension dim.
func sameBut(dim int, a, b []int64) bool {
	return len(a) == len(b) && slices.Equal(a[:dim], b[:dim]) && slices.Equal(a[dim+1:], b[dim+1:])
}

// Chunk returns part index of the parts into which dimension dim of t is cut,
// sharing t's memory. Parts have the size that parts of them need, rounded up,
// so the last ones may be smaller or empty, as where a mesh cuts a tensor.
func Chunk(t *Tensor, dim, parts, index int) (*Tensor, error) {
	if err := t.checkDim(dim); err != nil {
		return nil, fmt.Errorf("chunk: %w", err)
	}
	if parts < 1 || index < 0 || index >= parts {
		return nil, fmt.Errorf("chunk %v: %w: part %d of %d", t, ErrShape, index, parts)
	}
	n, p := t.shape[dim], int64(parts)
	size := n / p
	if n%p != 0 {
		size++
	}
	lo := n
	if i := int64(index); size > 0 && i <= n/size {
		lo = i * size
	}
	return t.Slice(dim, lo, lo+min(size, n-lo), 1)
}

// StridedSlice returns the elements of t whose index in every dimension d is one
// of begin[d], begin[d]+step[d] and so on before end[d], sharing t's memory. The
// intervals must lie inside of t and the steps be positive.
func StridedSlice(t *Tensor, begin, end, step []int64) (*Tensor, error) {
	if n := t.Dims(); len(begin) != n || len(end) != n || len(step) != n {
		return nil, fmt.Errorf("strided slice %v: %w: %d begins, %d ends and %d steps", t, ErrShape, len(begin), len(end), len(step))
	}
	var err error
	for d := range begin {
		if t, err = t.Slice(d, begin[d], end[d], step[d]); err != nil {
			return nil, fmt.Errorf("strided %w", err)
		}
	}
	return t, nil
}
