package inspect

import (
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/tensor"
)

// visitor takes the elements of a tensor a block at a time, as numbers that hold
// them exactly where there are such. Blocks are only lent.
type visitor interface {
	narrow(v []float32)
	wide(v []float64)
}

// blocks turns the bytes of tensors into blocks of numbers. It holds memory: it
// is for one goroutine.
type blocks struct {
	narrow []float32
	wide   []float64
}

// each hands the elements in p, which is aligned, to v: floats of up to four
// bytes and integers of up to two as float32, complex numbers as their
// magnitude.
func (b *blocks) each(d tensor.DType, p []byte, v visitor) error {
	step := blockElements * d.Size()
	for len(p) > 0 {
		n := min(step, len(p))
		if err := b.one(d, p[:n], v); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (b *blocks) one(d tensor.DType, p []byte, v visitor) error {
	switch d {
	case tensor.Float32:
		x, err := valuesOf[float32](d, p)
		if err == nil {
			v.narrow(x)
		}
		return err
	case tensor.Float64:
		x, err := valuesOf[float64](d, p)
		if err == nil {
			v.wide(x)
		}
		return err
	case tensor.Complex64, tensor.Complex128:
		x, err := b.magnitudes(d, p)
		if err == nil {
			v.wide(x)
		}
		return err
	}
	if d.Size() <= 2 {
		x, err := b.float32s(d, p)
		if err == nil {
			v.narrow(x)
		}
		return err
	}
	x, err := b.float64s(d, p)
	if err == nil {
		v.wide(x)
	}
	return err
}

// valuesOf returns the elements in p without a copy.
func valuesOf[E tensor.Element](d tensor.DType, p []byte) ([]E, error) {
	t, err := flat(d, p)
	if err != nil {
		return nil, err
	}
	return tensor.Values[E](t)
}

// flat returns p as a tensor of one dimension.
func flat(d tensor.DType, p []byte) (*tensor.Tensor, error) {
	if d.Size() == 0 {
		return nil, fmt.Errorf("%w: %v", tensor.ErrDType, d)
	}
	return tensor.FromBytes(d, []int64{int64(len(p) / d.Size())}, p)
}

func (b *blocks) float32s(d tensor.DType, p []byte) ([]float32, error) {
	if b.narrow == nil {
		b.narrow = make([]float32, blockElements)
	}
	return converted(d, p, b.narrow)
}

func (b *blocks) float64s(d tensor.DType, p []byte) ([]float64, error) {
	if b.wide == nil {
		b.wide = make([]float64, blockElements)
	}
	return converted(d, p, b.wide)
}

// converted returns the elements in p as values of another type, in memory that
// has room for them.
func converted[E tensor.Element](d tensor.DType, p []byte, room []E) ([]E, error) {
	src, err := flat(d, p)
	if err != nil {
		return nil, err
	}
	out := room[:src.NumElements()]
	dst, err := tensor.Of(src.Shape(), out)
	if err != nil {
		return nil, err
	}
	return out, tensor.Convert(dst, src, tensor.CastAny)
}

// magnitudes returns the absolute values of complex numbers.
func (b *blocks) magnitudes(d tensor.DType, p []byte) ([]float64, error) {
	if b.wide == nil {
		b.wide = make([]float64, blockElements)
	}
	if d == tensor.Complex64 {
		x, err := valuesOf[complex64](d, p)
		for i, c := range x {
			b.wide[i] = math.Hypot(float64(real(c)), float64(imag(c)))
		}
		return b.wide[:len(x)], err
	}
	x, err := valuesOf[complex128](d, p)
	for i, c := range x {
		b.wide[i] = math.Hypot(real(c), imag(c))
	}
	return b.wide[:len(x)], err
}
