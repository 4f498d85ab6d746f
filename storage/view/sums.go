package view

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Sums are the sum and the sum of squares of elements, computed from their bits as numbers
// modulo 2^64. They do not depend on the order of the elements, and are exact.
type Sums struct {
	// Elements counts the elements. Sum and Squares are over all of them.
	Elements, Sum, Squares atomic.Uint64
	// Inexact is set if a source went through arithmetic, so that its elements are not
	// the elements of the result.
	Inexact atomic.Bool
}

type sumsKey struct{}

// WithSums returns a context with which Read adds the elements that it reads from sources
// to s, if no arithmetic changes them.
func WithSums(ctx context.Context, s *Sums) context.Context {
	return context.WithValue(ctx, sumsKey{}, s)
}

// withoutSums returns a context for reads of the source, which may be a view too.
func withoutSums(ctx context.Context) context.Context {
	if SumsOf(ctx) == nil {
		return ctx
	}
	return WithSums(ctx, nil)
}

// SumsOf returns the sums of a context, or nil.
func SumsOf(ctx context.Context) *Sums {
	s, _ := ctx.Value(sumsKey{}).(*Sums)
	return s
}

// addSource adds the elements that were read for a tensor.
func (s *Sums) addSource(t *recipe.Tensor, elements *tensor.Tensor) {
	if s == nil {
		return
	}
	if t.Arithmetic() || elements.DType() != t.DType {
		s.Inexact.Store(true)
		return
	}
	s.Add(elements)
}

// Add adds the elements of t.
func (s *Sums) Add(t *tensor.Tensor) {
	size := int64(t.DType().Size())
	t = inMemoryOrder(t)
	runs, ok := t.AppendRuns(nil, min(64, size*t.NumElements()))
	if !ok {
		runs = [][]byte{t.Contents()}
	}
	for _, r := range runs {
		s.AddBytes(r, int(size))
	}
}

// inMemoryOrder returns t with the dimensions of larger strides first: sums do not depend on the
// order, and a transposed tensor has long runs in the order of its memory.
func inMemoryOrder(t *tensor.Tensor) *tensor.Tensor {
	for i := range t.Shape() {
		for k := i; k > 0 && t.Strides()[k-1] < t.Strides()[k]; k-- {
			u, err := t.Transpose(k-1, k)
			if err != nil {
				return t
			}
			t = u
		}
	}
	return t
}

// AddBytes adds elements of that size.
func (s *Sums) AddBytes(p []byte, size int) {
	var sum, squares uint64
	s.Elements.Add(uint64(len(p) / size))
	switch size {
	case 1:
		for _, b := range p {
			x := uint64(b)
			sum += x
			squares += x * x
		}
	case 2:
		for ; len(p) >= 8; p = p[8:] {
			w := binary.LittleEndian.Uint64(p)
			a, b, c, d := w&0xffff, w>>16&0xffff, w>>32&0xffff, w>>48
			sum += a + b + c + d
			squares += a*a + b*b + c*c + d*d
		}
		for ; len(p) >= 2; p = p[2:] {
			x := uint64(binary.LittleEndian.Uint16(p))
			sum += x
			squares += x * x
		}
	case 4:
		for ; len(p) >= 8; p = p[8:] {
			w := binary.LittleEndian.Uint64(p)
			a, b := w&0xffffffff, w>>32
			sum += a + b
			squares += a*a + b*b
		}
		if len(p) >= 4 {
			x := uint64(binary.LittleEndian.Uint32(p))
			sum += x
			squares += x * x
		}
	default: // 8 bytes, and complex numbers as two of them
		for ; len(p) >= 8; p = p[8:] {
			x := binary.LittleEndian.Uint64(p)
			sum += x
			squares += x * x
		}
	}
	s.Sum.Add(sum)
	s.Squares.Add(squares)
}

// Compare returns an error that wraps ErrCheck if the sums of a source and of a result
// differ.
func (s *Sums) Compare(result *Sums) error {
	if s.Inexact.Load() || s.Elements.Load() == result.Elements.Load() && s.Sum.Load() == result.Sum.Load() && s.Squares.Load() == result.Squares.Load() {
		return nil
	}
	return fmt.Errorf("%w: %d elements of the source have the sum %x and squares %x, %d of the result %x and %x", ErrCheck,
		s.Elements.Load(), s.Sum.Load(), s.Squares.Load(), result.Elements.Load(), result.Sum.Load(), result.Squares.Load())
}
