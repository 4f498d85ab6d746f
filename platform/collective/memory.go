package collective

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/tensor"
)

var scratches sync.Pool

// scratch returns a buffer of n bytes with undefined contents, aligned for every
// type, and a function that gives it back.
func scratch(n int) ([]byte, func()) {
	p, _ := scratches.Get().(*[]byte)
	if p == nil || cap(*p) < n {
		b := make([]byte, max(n, 64)) // large enough to be aligned
		p = &b
	}
	return (*p)[:n], func() { scratches.Put(p) }
}

// readable returns the elements of t, contiguous and aligned: its own memory
// if it is both, else a copy.
func readable(t *tensor.Tensor) []byte {
	if b, ok := t.Bytes(); ok && t.DType().Aligned(b) {
		return b
	}
	b, _ := t.Clone().Bytes()
	return b
}

// writable returns memory for the elements of t, contiguous and aligned, and a
// function that stores them in t. The memory holds t's elements if keep is true.
func writable(t *tensor.Tensor, keep bool) ([]byte, func() error) {
	if b, ok := t.Bytes(); ok && t.DType().Aligned(b) {
		return b, func() error { return nil }
	}
	var tmp *tensor.Tensor
	if keep {
		tmp = t.Clone()
	} else {
		tmp, _ = tensor.New(t.DType(), t.Shape()) // as large as t, so there is no error
	}
	b, _ := tmp.Bytes()
	return b, func() error { return tensor.Copy(t, tmp) }
}

// checkTarget returns an error if a tensor cannot be written to.
func checkTarget(t *tensor.Tensor) error {
	if err := checkSource(t); err != nil {
		return err
	}
	for d, stride := range t.Strides() {
		if stride == 0 && t.Shape()[d] > 1 {
			return fmt.Errorf("%v is expanded and cannot be written: %w", t, tensor.ErrLayout)
		}
	}
	return nil
}

// checkSource returns an error if the tensor is nil or has no memory.
func checkSource(t *tensor.Tensor) error {
	if t == nil {
		return fmt.Errorf("no tensor: %w", tensor.ErrShape)
	}
	if t.IsPlaceholder() {
		return fmt.Errorf("%v: %w", t, tensor.ErrPlaceholder)
	}
	return nil
}

// checkBoth returns an error unless src can be read, dst can be written to, and
// their types are equal.
func checkBoth(dst, src *tensor.Tensor) error {
	if err := cmp.Or(checkSource(src), checkTarget(dst)); err != nil {
		return err
	}
	if dst.DType() != src.DType() {
		return fmt.Errorf("%v from %v: %w", dst, src, tensor.ErrDType)
	}
	return nil
}
