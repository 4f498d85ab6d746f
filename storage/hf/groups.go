package hf

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// groups makes the numbers of a weight of 4-bit floats, two in a byte, the lower
// half first: its last dimension counts the bytes of a group, the one before the
// groups, and each group has a power of two as its factor.
type groups struct {
	store         blob.Store
	bytes, scale  *reading.Region
	shape, scales []int64 // of the bytes and of the factors
}

var _ reading.Cutter = (*groups)(nil)

// fp4 are the numbers that four bits stand for.
var fp4 = [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -.5, -1, -1.5, -2, -3, -4, -6}

// bias is what is taken off a stored exponent.
const bias = 127

// newGroups pairs the bytes of a weight with its factors.
func (s *source) newGroups(weight, scale *meta.Entry) (reading.Maker, []int64, error) {
	m := &groups{store: s.store, shape: weight.Tensor.Shape, scales: scale.Tensor.Shape}
	var err error
	if m.bytes, m.scale, err = bothWhole(weight, scale); err != nil {
		return nil, nil, err
	}
	switch scale.Tensor.DType {
	case tensor.Uint8:
	case tensor.Float8E8M0FNU:
		m.scale.DType = tensor.Uint8 // the same exponents under another name
	default:
		return nil, nil, fmt.Errorf("factors of type %v", scale.Tensor.DType)
	}
	k := len(m.shape) - 2
	if k < 0 || !slices.Equal(m.shape[:k+1], m.scales) {
		return nil, nil, fmt.Errorf("factors of shape %v for groups of shape %v", m.scales, m.shape)
	}
	if m.shape[k] > 0 && m.shape[k+1] > math.MaxInt64/2/m.shape[k] {
		return nil, nil, fmt.Errorf("groups of shape %v", m.shape)
	}
	return m, append(slices.Clone(m.shape[:k]), m.shape[k]*m.shape[k+1]*2), nil
}

// Cut cuts a box by its rows.
func (m *groups) Cut(box tensor.Box, budget int64) []tensor.Box { return cutFor(box, budget) }

// Make reads the groups that hold a box, and their factors.
func (m *groups) Make(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	if box.Empty() {
		return 0, nil
	}
	k := box.Dims() - 1
	each := 2 * m.shape[k+1] // numbers of a group
	first, end := box.Offsets[k]/each, ceilDiv(box.End(k), each)
	at := tensor.Box{Offsets: slices.Clone(box.Offsets), Sizes: slices.Clone(box.Sizes)}
	at.Offsets[k], at.Sizes[k] = first, end-first
	factors, read, err := m.read(ctx, m.scale, m.scales, at, budget)
	if err != nil {
		return read, err
	}
	at.Offsets, at.Sizes = append(at.Offsets, 0), append(at.Sizes, m.shape[k+1])
	packed, n, err := m.read(ctx, m.bytes, m.shape, at, budget)
	read += n
	if err != nil {
		return read, err
	}
	sizes := append(slices.Clone(box.Sizes[:k]), (end-first)*each)
	numbers, values, err := newFloats(sizes)
	if err != nil {
		return read, err
	}
	unpack(values, packed, factors, int(m.shape[k+1]))
	wanted := tensor.Whole(box.Sizes)
	wanted.Offsets = slices.Clone(wanted.Offsets)
	wanted.Offsets[k] = box.Offsets[k] - first*each
	if numbers, err = numbers.Narrow(wanted); err != nil {
		return read, err
	}
	return read, tensor.Convert(dst, numbers, tensor.CastAny)
}

// read returns the bytes of a box of a region.
func (m *groups) read(ctx context.Context, r *reading.Region, sizes []int64, box tensor.Box, budget int64) ([]byte, int64, error) {
	x, err := tensor.New(tensor.Uint8, box.Sizes)
	if err != nil {
		return nil, 0, err
	}
	n, err := reading.ReadBox(ctx, m.store, r, sizes, box, x, budget)
	return x.Contents(), n, err
}

// scaled are the numbers of fp4 with each of the factors that a byte stands for.
var scaled = sync.OnceValue(func() *[256][16]float32 {
	var t [256][16]float32
	for exp := range t {
		for i, v := range fp4 {
			t[exp][i] = float32(math.Ldexp(float64(v), exp-bias))
		}
	}
	return &t
})

// unpack makes the numbers of groups of each bytes.
func unpack(out []float32, packed, factors []byte, each int) {
	tables := scaled()
	for g, exp := range factors {
		table := &tables[exp]
		for i, b := range packed[g*each : (g+1)*each] {
			out[2*(g*each+i)] = table[b&15]
			out[2*(g*each+i)+1] = table[b>>4]
		}
	}
}
