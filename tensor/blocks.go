package tensor

import (
	"fmt"
	"math"
	"slices"
)

// Blocks is the size of the blocks of a quantised tensor: its last two dimensions are
// divided into blocks, and each block has a factor. The last block of a dimension may be
// smaller. The elements are the stored numbers times the factors.
type Blocks struct{ Rows, Columns int64 }

// String returns "128 by 128".
func (b Blocks) String() string { return fmt.Sprintf("%d by %d", b.Rows, b.Columns) }

// Factors returns the shape of the factors of a tensor. The error wraps [ErrShape] if the
// tensor has fewer than two dimensions.
func (b Blocks) Factors(shape []int64) ([]int64, error) {
	k := len(shape) - 2
	if k < 0 {
		return nil, fmt.Errorf("%w: blocks of %v in the shape %v: want two dimensions or more", ErrShape, b, shape)
	}
	out := slices.Clone(shape)
	out[k], out[k+1] = blocksIn(shape[k], b.Rows), blocksIn(shape[k+1], b.Columns)
	return out, nil
}

// blocksIn returns how many blocks n elements are in.
func blocksIn(n, block int64) int64 {
	if n == 0 {
		return 0
	}
	return (n-1)/block + 1
}

// Of returns the box of the factors of all blocks that have elements in box, which is not
// empty.
func (b Blocks) Of(box Box) Box {
	k := box.Dims() - 2
	out := box.Between(k, box.Offsets[k]/b.Rows, blocksIn(box.End(k), b.Rows))
	return out.Between(k+1, box.Offsets[k+1]/b.Columns, blocksIn(box.End(k+1), b.Columns))
}

// Elements returns the box of all elements of the blocks that have their factors in a box.
// shape is the shape of the tensor.
func (b Blocks) Elements(factors Box, shape []int64) Box {
	k := len(shape) - 2
	out := factors.Between(k, factors.Offsets[k]*b.Rows, min(factors.End(k)*b.Rows, shape[k]))
	return out.Between(k+1, factors.Offsets[k+1]*b.Columns, min(factors.End(k+1)*b.Columns, shape[k+1]))
}

// Scale multiplies the elements of a box of a tensor by the factors of their blocks, which
// are the box b.Of(box) of all factors. Both are contiguous float32.
func (b Blocks) Scale(numbers, factors *Tensor, box Box) error {
	return b.each(numbers, factors, box, func(row []float32, _ int64, f *float32) {
		for i := range row {
			row[i] *= *f
		}
	})
}

// FactorsFor returns the factors for [Blocks.Quantize] of a box of whole blocks. numbers has
// the elements, as contiguous float32. The factor of a block is the largest absolute value
// in it, divided by the largest number of d in float32; it is 1 if that is zero. The error
// wraps [ErrCast] if an element is not finite.
func (b Blocks) FactorsFor(numbers *Tensor, box Box, d DType) (*Tensor, error) {
	most, ok := MaxFloat8(d)
	if !ok {
		return nil, fmt.Errorf("%w: quantize to %v", ErrDType, d)
	}

	factors, err := New(Float32, b.Of(box).Sizes)
	if err != nil {
		return nil, err
	}

	infinite := int64(-1)
	if err := b.each(numbers, factors, box, func(row []float32, at int64, f *float32) {
		// Without the sign, the bits of numbers have the order of the numbers.
		largest := math.Float32bits(*f)
		for _, v := range row {
			largest = max(largest, math.Float32bits(v)&^(1<<31))
		}
		if *f = math.Float32frombits(largest); largest >= infinityBits && infinite < 0 {
			infinite = at + int64(slices.IndexFunc(row, func(v float32) bool { return math.Float32bits(v)&infinityBits == infinityBits }))
		}
	}); err != nil {
		return nil, err
	}

	if infinite >= 0 {
		at := slices.Clone(box.Offsets)
		for k, rest := box.Dims()-1, infinite; k >= 0; k-- {
			at[k] += rest % box.Sizes[k]
			rest /= box.Sizes[k]
		}
		return nil, fmt.Errorf("quantize to %v: %w: the element at %v is infinite or NaN", d, ErrCast, at)
	}

	all, err := Values[float32](factors)
	if err != nil {
		return nil, err
	}

	for i := range all {
		if all[i] /= most; all[i] == 0 {
			all[i] = 1
		}
	}

	return factors, nil
}

// Quantize returns the elements of a box of whole blocks in the dtype d, an 8-bit float, for
// the factors that [Blocks.FactorsFor] returns. An element becomes its quotient by the factor
// in float32, not beyond the largest number of d, rounded to the nearest number of d, ties to
// even. Quantize overwrites numbers.
func (b Blocks) Quantize(numbers, factors *Tensor, box Box, d DType) (*Tensor, error) {
	most, ok := MaxFloat8(d)
	if !ok {
		return nil, fmt.Errorf("%w: quantize to %v", ErrDType, d)
	}

	if err := b.each(numbers, factors, box, func(row []float32, _ int64, f *float32) {
		factor := *f
		for i, v := range row {
			q := v / factor
			if q > most { // by rounding
				q = most
			} else if q < -most {
				q = -most
			}
			row[i] = q
		}
	}); err != nil {
		return nil, err
	}

	out, err := New(d, numbers.Shape())
	if err != nil {
		return nil, err
	}
	return out, Convert(out, numbers, CastInRange)
}

// infinityBits are the bits of infinity as a float32. The bits of NaNs are greater.
const infinityBits = 0xff << 23

// MaxFloat8 returns the largest number of an 8-bit float that has a sign, and whether d is
// one.
func MaxFloat8(d DType) (float32, bool) {
	switch d {
	case Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ:
		_, high := rangeOf(d)
		return float32(high), true
	}
	return 0, false
}

// each calls fn for each row of each block of a box, with the position of the row among the
// elements of the box, and with the factor of the block.
func (b Blocks) each(numbers, factors *Tensor, box Box, fn func(row []float32, at int64, factor *float32)) error {
	values, err := Values[float32](numbers)
	if err != nil {
		return err
	}

	all, err := Values[float32](factors)
	if err != nil {
		return err
	}

	of := b.Of(box)
	if !slices.Equal(numbers.shape, box.Sizes) || !slices.Equal(factors.shape, of.Sizes) {
		return fmt.Errorf("%w: elements of %v and factors of %v for a box of %v in blocks of %v", ErrShape, numbers.shape, factors.shape, box.Sizes, b)
	}

	k := box.Dims() - 2
	rows, cols := box.Sizes[k], box.Sizes[k+1]
	for i := range int64(len(values)) / cols { // all rows of all matrices
		row := values[i*cols : (i+1)*cols]
		block := (box.Offsets[k]+i%rows)/b.Rows - of.Offsets[k]
		f := all[(i/rows*of.Sizes[k]+block)*of.Sizes[k+1]:][:of.Sizes[k+1]]
		from := int64(0)
		for c := range f {
			to := min((of.Offsets[k+1]+int64(c)+1)*b.Columns-box.Offsets[k+1], cols)
			fn(row[from:to], i*cols+from, &f[c])
			from = to
		}
	}

	return nil
}
