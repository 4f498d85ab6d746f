package hf

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// blocks makes the numbers of a weight of 8-bit floats whose last two dimensions
// are cut into blocks, with a factor for each.
type blocks struct {
	store         blob.Store
	weight, scale *reading.Region
	shape, scales []int64 // of the weight and of the factors
	rows, cols    int64   // of a block
}

var _ reading.Cutter = (*blocks)(nil)

// newBlocks pairs a weight with its factors.
func (s *source) newBlocks(weight, scale *meta.Entry, block []int64) (reading.Maker, []int64, error) {
	m := &blocks{store: s.store, shape: weight.Tensor.Shape, scales: scale.Tensor.Shape, rows: block[0], cols: block[1]}
	var err error
	if m.weight, m.scale, err = bothWhole(weight, scale); err != nil {
		return nil, nil, err
	}
	k := len(m.shape) - 2
	if k < 0 {
		return nil, nil, fmt.Errorf("blocks in the shape %v", m.shape)
	}
	want := append(slices.Clone(m.shape[:k]), ceilDiv(m.shape[k], m.rows), ceilDiv(m.shape[k+1], m.cols))
	if !slices.Equal(m.scales, want) {
		return nil, nil, fmt.Errorf("factors of shape %v for blocks of %d by %d in %v: want %v", m.scales, m.rows, m.cols, m.shape, want)
	}
	return m, m.shape, nil
}

func ceilDiv(a, b int64) int64 {
	if a == 0 {
		return 0
	}
	return (a-1)/b + 1
}

// Cut cuts a box by its rows.
func (m *blocks) Cut(box tensor.Box, budget int64) []tensor.Box { return cutFor(box, budget) }

// Make reads a box of the weight and the factors that it needs.
func (m *blocks) Make(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	if box.Empty() {
		return 0, nil
	}
	numbers, values, err := newFloats(box.Sizes)
	if err != nil {
		return 0, err
	}
	read, err := reading.ReadBox(ctx, m.store, m.weight, m.shape, box, numbers, budget)
	if err != nil {
		return read, err
	}
	at := m.factorBox(box)
	factors, f, err := newFloats(at.Sizes)
	if err != nil {
		return read, err
	}
	n, err := reading.ReadBox(ctx, m.store, m.scale, m.scales, at, factors, budget)
	read += n
	if err != nil {
		return read, err
	}
	m.scaleBy(values, f, box, at)
	return read, tensor.Convert(dst, numbers, tensor.CastAny)
}

// newFloats returns a tensor for numbers on their way, and its elements.
func newFloats(shape []int64) (*tensor.Tensor, []float32, error) {
	x, err := tensor.New(tensor.Float32, shape)
	if err != nil {
		return nil, nil, err
	}
	v, err := tensor.Values[float32](x)
	return x, v, err
}

// factorBox returns the box of the factors that a box of the weight needs.
func (m *blocks) factorBox(box tensor.Box) tensor.Box {
	k := box.Dims() - 2
	out := tensor.Box{Offsets: slices.Clone(box.Offsets), Sizes: slices.Clone(box.Sizes)}
	for i, per := range []int64{m.rows, m.cols} {
		d := k + i
		out.Offsets[d] = box.Offsets[d] / per
		out.Sizes[d] = ceilDiv(box.End(d), per) - out.Offsets[d]
	}
	return out
}

// scaleBy multiplies the numbers of a box by the factors of another.
func (m *blocks) scaleBy(values, factors []float32, box, at tensor.Box) {
	k := box.Dims() - 2
	rows, cols := box.Sizes[k], box.Sizes[k+1]
	frows, fcols := at.Sizes[k], at.Sizes[k+1]
	for i := range int64(len(values)) / cols { // all rows of all matrices
		row := values[i*cols : (i+1)*cols]
		matrix := i / rows
		block := (box.Offsets[k]+i%rows)/m.rows - at.Offsets[k]
		f := factors[(matrix*frows+block)*fcols:][:fcols]
		for c, from := int64(0), int64(0); c < fcols; c++ {
			to := min((at.Offsets[k+1]+c+1)*m.cols-box.Offsets[k+1], cols)
			for j := from; j < to; j++ {
				row[j] *= f[c]
			}
			from = to
		}
	}
}
