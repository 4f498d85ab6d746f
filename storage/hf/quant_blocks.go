package hf

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The suffixes of the names that quantised weights and their scales have.
const (
	scaleInv   = "_scale_inv" // after the name of the weight
	scaleOther = "_scale"     // after the name of a weight of another kind
	blocksEnd  = "_blocks"
	scalesEnd  = "_scales"
)

// blocksOrGroups is the rule of weights of 8-bit floats in blocks and of 4-bit floats in groups,
// such as of DeepSeek-V3 and GPT-OSS.
func blocksOrGroups(z *quantiser, e *meta.Entry) (*decoded, error) {
	scale, err := z.scaleOf(e)
	if scale == nil || err != nil {
		return nil, err
	}

	form, shape, err := z.newBlocked(e, scale, z.conf.Block)
	if err != nil {
		return nil, fmt.Errorf("with %q: %w", scale.FQN, err)
	}
	return &decoded{e.FQN, shape, tensor.Float32, form, []string{scale.FQN}}, nil
}

// scaleOf returns the scales of an entry, or nil if the entry is not quantised.
func (s *source) scaleOf(e *meta.Entry) (*meta.Entry, error) {
	name := ""
	switch d := e.Tensor.DType; d {
	case tensor.Float8E4M3FN, tensor.Float8E4M3FNUZ, tensor.Float8E5M2, tensor.Float8E5M2FNUZ:
		name = e.FQN + scaleInv
		_, known := s.md.Find(name)
		if _, other := s.md.Find(e.FQN + scaleOther); other && !known {
			return nil, fmt.Errorf("scaled by %q, which is not known", e.FQN+scaleOther)
		}
	case tensor.Uint8:
		if base, ok := strings.CutSuffix(e.FQN, blocksEnd); ok {
			name = base + scalesEnd
		}
	}

	scale, _ := s.md.Find(name)
	return scale, nil
}

// blocked is a weight in one of two forms:
//
//   - 8-bit floats. The last two dimensions are divided into blocks, with a factor for each
//     block.
//   - 4-bit floats, two in a byte, the lower half first. The last dimension counts the
//     bytes of a group, and the dimension before it the groups. Each group has a power
//     of two as its factor.
type blocked struct {
	weight, scale  *reading.Region
	stored, scales []int64       // the shapes of the stored weight and of the factors
	blocks         tensor.Blocks // zero: the weight has groups
}

// newBlocked returns the form and the shape of a weight. block is the shape of the blocks of 8-bit
// floats.
func (s *source) newBlocked(weight, scale *meta.Entry, block []int64) (*blocked, []int64, error) {
	for _, e := range []*meta.Entry{weight, scale} {
		if n := len(e.Tensor.Chunks); n != 1 {
			return nil, nil, fmt.Errorf("%q is cut into %d chunks", e.FQN, n)
		}
	}

	q := &blocked{weight: regionOf(weight, 0), scale: regionOf(scale, 0), stored: weight.Tensor.Shape, scales: scale.Tensor.Shape}
	k := len(q.stored) - 2
	if weight.Tensor.DType != tensor.Uint8 {
		q.blocks = tensor.Blocks{Rows: block[0], Columns: block[1]}
		want, err := q.blocks.Factors(q.stored)
		if err != nil {
			return nil, nil, err
		}
		if !slices.Equal(q.scales, want) {
			return nil, nil, fmt.Errorf("factors of shape %v for blocks of %v in %v: want %v", q.scales, q.blocks, q.stored, want)
		}
		return q, q.stored, nil
	}

	if d := scale.Tensor.DType; d != tensor.Uint8 && d != tensor.Float8E8M0FNU { // two names for the same exponents
		return nil, nil, fmt.Errorf("factors of type %v", d)
	}

	q.scale.DType = tensor.Uint8
	if k < 0 || !slices.Equal(q.stored[:k+1], q.scales) {
		return nil, nil, fmt.Errorf("factors of shape %v for groups of shape %v", q.scales, q.stored)
	}
	if q.stored[k] > 0 && q.stored[k+1] > math.MaxInt64/2/q.stored[k] {
		return nil, nil, fmt.Errorf("groups of shape %v", q.stored)
	}
	return q, append(slices.Clone(q.stored[:k]), q.stored[k]*q.stored[k+1]*2), nil
}

func ceilDiv(a, b int64) int64 {
	if a == 0 {
		return 0
	}
	return (a-1)/b + 1
}

// cut divides a box along its first dimensions.
func (q *blocked) cut(box tensor.Box, most int64) []tensor.Box { return box.Cut(most) }

// decode reads the blocks or groups that hold a box, and their factors.
func (q *blocked) decode(box tensor.Box, read readFunc) (*tensor.Tensor, error) {
	if q.blocks.Rows > 0 {
		return q.decodeBlocks(box, read)
	}
	return q.decodeGroups(box, read)
}

func (q *blocked) decodeBlocks(box tensor.Box, read readFunc) (*tensor.Tensor, error) {
	numbers, err := read(q.weight, tensor.Float32, q.stored, box)
	if err != nil {
		return nil, err
	}
	factors, err := read(q.scale, tensor.Float32, q.scales, q.blocks.Of(box))
	if err != nil {
		return nil, err
	}
	return numbers, q.blocks.Scale(numbers, factors, box)
}

func (q *blocked) decodeGroups(box tensor.Box, read readFunc) (*tensor.Tensor, error) {
	k := box.Dims() - 1
	bytes := q.stored[k+1] // of a group
	first, end := box.Offsets[k]/(2*bytes), ceilDiv(box.End(k), 2*bytes)
	at := box.Between(k, first, end)
	factors, err := read(q.scale, tensor.Uint8, q.scales, at)
	if err != nil {
		return nil, err
	}

	at.Offsets, at.Sizes = append(at.Offsets, 0), append(at.Sizes, bytes)
	packed, err := read(q.weight, tensor.Uint8, q.stored, at)
	if err != nil {
		return nil, err
	}

	numbers, err := unpack(packed.Contents(), factors.Contents(), append(slices.Clone(box.Sizes[:k]), (end-first)*2*bytes))
	if err != nil {
		return nil, err
	}

	begin := box.Offsets[k] - first*2*bytes
	return numbers.Narrow(tensor.Whole(box.Sizes).Between(k, begin, begin+box.Sizes[k]))
}

// fp4 are the numbers that four bits represent.
var fp4 = [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -.5, -1, -1.5, -2, -3, -4, -6}

// bias is subtracted from a stored exponent.
const bias = 127

// scaled are the numbers of fp4 with each of the factors that a byte represents.
var scaled = sync.OnceValue(func() *[256][16]float32 {
	var t [256][16]float32
	for exp := range t {
		for i, v := range fp4 {
			t[exp][i] = float32(math.Ldexp(float64(v), exp-bias))
		}
	}
	return &t
})

// unpack returns a tensor with the numbers of groups, which have equal lengths.
func unpack(packed, factors []byte, shape []int64) (*tensor.Tensor, error) {
	x, err := tensor.New(tensor.Float32, shape)
	if err != nil {
		return nil, err
	}

	out, err := tensor.Values[float32](x)
	if err != nil {
		return nil, err
	}

	tables, each := scaled(), len(packed)/len(factors)
	for g, exp := range factors {
		table := &tables[exp]
		for i, b := range packed[g*each : (g+1)*each] {
			out[2*(g*each+i)] = table[b&15]
			out[2*(g*each+i)+1] = table[b>>4]
		}
	}

	return x, nil
}
