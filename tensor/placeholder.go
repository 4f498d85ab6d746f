package tensor

import (
	"errors"
	"fmt"
)

// ErrPlaceholder reports a tensor without memory that was to be filled or saved.
var ErrPlaceholder = errors.New("tensor is a placeholder without memory")

// Placeholder returns a tensor that has a dtype and a shape and next to no
// memory, like a tensor on PyTorch's meta device. Its elements read as zero.
// [Copy] and [Convert] do not write to it until [Tensor.Materialize] gives it
// memory. A tensor without elements needs no memory and is not a placeholder.
func Placeholder(d DType, shape []int64) (*Tensor, error) {
	zero, err := New(d, nil)
	if err != nil {
		return nil, fmt.Errorf("placeholder: %w", err)
	}
	t, err := zero.Expand(shape)
	if err != nil {
		return nil, fmt.Errorf("placeholder: %w", err)
	}
	t.placeholder = t.NumElements() > 0
	return t, nil
}

// IsPlaceholder reports whether t has no memory: [Placeholder] made it, or it is
// a view of such a tensor, and [Tensor.Materialize] was not called.
func (t *Tensor) IsPlaceholder() bool { return t.placeholder }

// Materialize gives a placeholder memory of its own, filled with zeros. Every
// holder of the pointer t sees it; views that were made before remain
// placeholders. A tensor that has memory stays as it is. The error is that of
// [New]. It is not safe for concurrent use with other methods of t.
func (t *Tensor) Materialize() error {
	if !t.placeholder {
		return nil
	}
	m, err := New(t.dtype, t.shape)
	if err != nil {
		return fmt.Errorf("materialize: %w", err)
	}
	*t = *m
	return nil
}
