package hf

import (
	"fmt"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// matrix is the numbers of a stored tensor of two dimensions.
type matrix struct {
	region *reading.Region
	stored []int64  // the shape of the stored tensor
	shape  []int64  // of the numbers
	pack   *packing // nil: each element of the tensor is a number
}

// packing is how whole numbers of a few bits lie in words. Number i of a row begins at bit
// i·bits of the words of the row, which are little-endian.
type packing struct {
	bits  int64
	word  int64 // its bits: 8 or 32
	axis  int   // the dimension along which numbers are packed
	order []int64
	// values are the numbers that the codes stand for.
	values []float32
}

// plain returns the numbers of a tensor with one number for each element.
func plain(e *meta.Entry, shape []int64) *matrix {
	return &matrix{region: regionOf(e, 0), stored: shape, shape: shape}
}

// packed returns the numbers in the words of a tensor. The shape of the numbers must lead to the
// shape of the tensor.
func packed(e *meta.Entry, p *packing, shape []int64) (*matrix, error) {
	d := tensor.Int32
	if p.word == 8 {
		d = tensor.Uint8
	}
	if e.Tensor.DType != d {
		return nil, fmt.Errorf("%q is %v; want %v", e.FQN, e.Tensor.DType, d)
	}

	want := slices.Clone(shape)
	if n := want[p.axis]; n < 0 || n > math.MaxInt64/p.bits {
		return nil, fmt.Errorf("%q: a shape of %v", e.FQN, shape)
	}
	want[p.axis] = ceilDiv(want[p.axis]*p.bits, p.word)
	if !slices.Equal(e.Tensor.Shape, want) {
		return nil, fmt.Errorf("%q has the shape %v: want %v for numbers of the shape %v", e.FQN, e.Tensor.Shape, want, shape)
	}
	return &matrix{regionOf(e, 0), e.Tensor.Shape, shape, p}, nil
}

// read returns the numbers of a box, in row-major order.
func (m *matrix) read(read readFunc, box tensor.Box) ([]float32, error) {
	if m.pack == nil {
		x, err := read(m.region, tensor.Float32, m.stored, box)
		if err != nil {
			return nil, err
		}
		return tensor.Values[float32](x)
	}

	p := m.pack
	first, end := box.Offsets[p.axis]*p.bits/p.word, ceilDiv(box.End(p.axis)*p.bits, p.word)
	at := box.Between(p.axis, first, end)
	if p.word == 8 {
		x, err := read(m.region, tensor.Uint8, m.stored, at)
		if err != nil {
			return nil, err
		}
		return unpackWords(p, x.Contents(), box, first, end-first), nil
	}

	x, err := read(m.region, tensor.Int32, m.stored, at)
	if err != nil {
		return nil, err
	}
	words, err := tensor.Values[int32](x)
	if err != nil {
		return nil, err
	}
	return unpackWords(p, words, box, first, end-first), nil
}

// unpackWords returns the numbers of a box. words has the words of the box, from number first
// in the dimension of the packing; there are count in it.
func unpackWords[W uint8 | int32](p *packing, words []W, box tensor.Box, first, count int64) []float32 {
	rows, cols := box.Sizes[0], box.Sizes[1]
	out := make([]float32, 0, rows*cols)
	mask := uint64(1)<<p.bits - 1
	wordMask := uint64(1)<<p.word - 1
	code := func(i, base, step int64) float32 { // number i of the words at base, base+step, …
		if p.order != nil {
			n := int64(len(p.order))
			i = i/n*n + p.order[i%n]
		}
		bit := i*p.bits - first*p.word
		w, shift := bit/p.word, bit%p.word
		v := uint64(words[base+w*step]) & wordMask >> shift
		if shift+p.bits > p.word {
			v |= uint64(words[base+(w+1)*step]) & wordMask << (p.word - shift)
		}
		return p.values[v&mask]
	}

	for r := range rows {
		for c := range cols {
			if p.axis == 1 {
				out = append(out, code(box.Offsets[1]+c, r*count, 1))
			} else {
				out = append(out, code(box.Offsets[0]+r, c, cols))
			}
		}
	}
	return out
}

// affine is a weight that is (number − zero) · factor. The factors and the zeros have a place
// for each block of the numbers. Each step is a float32.
type affine struct {
	numbers, zeros, factors *matrix // zeros may be nil
	// blocks is the size of the blocks of numbers that share a factor.
	blocks tensor.Blocks
	// index, if not nil, has the block of each number in dimension axis.
	index *matrix
	axis  int
	// divisor, if not nil, holds a number that all factors are divided by.
	divisor *matrix
	// then, if not 0, multiplies the products.
	then float32
	// transposed means that the weight is the transposed matrix.
	transposed bool
}

// fit completes a, and checks that the factors and zeros fit the numbers. It returns the shape of
// the weight.
func (a *affine) fit() ([]int64, error) {
	want, err := a.blocks.Factors(a.numbers.shape)
	if err != nil {
		return nil, err
	}

	if a.index != nil {
		if n := a.index.shape[1]; n != a.numbers.shape[a.axis] {
			return nil, fmt.Errorf("an index of %d groups for numbers of the shape %v", n, a.numbers.shape)
		}
		want[a.axis] = a.factors.shape[a.axis] // which groups there are is the index's
	}
	if !slices.Equal(a.factors.shape, want) {
		return nil, fmt.Errorf("factors of the shape %v for numbers of the shape %v in blocks of %v: want %v", a.factors.shape, a.numbers.shape, a.blocks, want)
	}
	if a.zeros != nil && !slices.Equal(a.zeros.shape, want) {
		return nil, fmt.Errorf("zero points of the shape %v: want %v", a.zeros.shape, want)
	}

	shape := slices.Clone(a.numbers.shape)
	if a.transposed {
		slices.Reverse(shape)
	}
	return shape, nil
}

// cut divides a box along its first dimensions.
func (a *affine) cut(box tensor.Box, most int64) []tensor.Box { return box.Cut(most) }

// decode reads the numbers of a box, and their factors.
func (a *affine) decode(box tensor.Box, read readFunc) (*tensor.Tensor, error) {
	if a.transposed {
		box = tensor.Box{Offsets: slices.Clone(box.Offsets), Sizes: slices.Clone(box.Sizes)}
		slices.Reverse(box.Offsets)
		slices.Reverse(box.Sizes)
	}

	out, err := a.numbers.read(read, box)
	if err != nil {
		return nil, err
	}

	at, groups, err := a.groupsOf(box, read)
	if err != nil {
		return nil, err
	}
	factors, err := a.factorsIn(at, read)
	if err != nil {
		return nil, err
	}
	var zeros []float32
	if a.zeros != nil {
		if zeros, err = a.zeros.read(read, at); err != nil {
			return nil, err
		}
	}

	cols := box.Sizes[1]
	for i, r := range groups[0] {
		for j, c := range groups[1] {
			x, k := &out[int64(i)*cols+int64(j)], r*at.Sizes[1]+c
			if zeros != nil {
				*x -= zeros[k]
			}
			*x *= factors[k]
			if a.then != 0 {
				*x *= a.then
			}
		}
	}

	x, err := tensor.Of(box.Sizes, out)
	if err == nil && a.transposed {
		x, err = x.Transpose(0, 1)
	}
	return x, err
}

// groupsOf returns the box of the factors that a box of numbers needs, and for each row and each
// column of the box its place in the box of factors.
func (a *affine) groupsOf(box tensor.Box, read readFunc) (tensor.Box, [2][]int64, error) {
	at := a.blocks.Of(box)
	var groups [2][]int64
	for d, size := range []int64{a.blocks.Rows, a.blocks.Columns} {
		groups[d] = make([]int64, box.Sizes[d])
		for i := range groups[d] {
			groups[d][i] = (box.Offsets[d] + int64(i)) / size
		}
	}

	if a.index != nil {
		d := a.axis
		line := tensor.Box{Offsets: []int64{0, box.Offsets[d]}, Sizes: []int64{1, box.Sizes[d]}}
		x, err := read(a.index.region, tensor.Int64, a.index.stored, line)
		if err != nil {
			return at, groups, err
		}
		if groups[d], err = tensor.Values[int64](x); err != nil {
			return at, groups, err
		}

		low, high := slices.Min(groups[d]), slices.Max(groups[d])
		if low < 0 || high >= a.factors.shape[d] {
			return at, groups, fmt.Errorf("%w: the index of groups has %d and %d, and there are %d groups", storage.ErrCorrupt, low, high, a.factors.shape[d])
		}
		at = at.Between(d, low, high+1)
	}

	for d := range groups {
		for i := range groups[d] {
			groups[d][i] -= at.Offsets[d]
		}
	}
	return at, groups, nil
}

// factorsIn returns a box of the factors.
func (a *affine) factorsIn(at tensor.Box, read readFunc) ([]float32, error) {
	out, err := a.factors.read(read, at)
	if err != nil || a.divisor == nil {
		return out, err
	}

	by, err := a.divisor.read(read, tensor.Whole(a.divisor.shape))
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i] /= by[0]
	}
	return out, nil
}
