package hf

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
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

// methods are the kinds of quantisation that can be decoded.
var methods = []string{"", "fp8", "mxfp4"}

// quantConfig is the part of a model's configuration about its quantisation.
type quantConfig struct {
	Method string  `json:"quant_method"`
	Block  []int64 `json:"weight_block_size"`
}

// maxConfig bounds the text of a configuration.
const maxConfig = 16 << 20

// decodeConfig returns the part of a configuration about quantisation, with defaults for
// fields that it does not contain.
func decodeConfig(b []byte) (quantConfig, error) {
	var doc struct {
		Quant *quantConfig `json:"quantization_config"`
		Text  struct {
			Quant *quantConfig `json:"quantization_config"`
		} `json:"text_config"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return quantConfig{}, err
	}

	c := quantConfig{Block: []int64{128, 128}}
	for _, q := range []*quantConfig{doc.Text.Quant, doc.Quant} {
		if q == nil {
			continue
		}
		c.Method = q.Method
		if q.Block != nil {
			c.Block = q.Block
		}
	}

	if !slices.Contains(methods, c.Method) {
		return c, fmt.Errorf("weights of the kind %q", c.Method)
	}
	if len(c.Block) != 2 || c.Block[0] <= 0 || c.Block[1] <= 0 {
		return c, fmt.Errorf("blocks of %v", c.Block)
	}
	return c, nil
}

// dequantize replaces the quantised weights among the entries by the numbers that they
// represent, and drops their scales.
func (s *source) dequantize(ctx context.Context, dir *folder, to tensor.DType) error {
	if err := s.md.CheckWhole(nil); err != nil { // a scale may be missing
		return err
	}

	text := []byte("{}")
	if size, ok := dir.other[configName]; ok {
		var err error
		if text, err = blob.ReadAll(ctx, s.store, configName, maxConfig); err != nil {
			return err
		}
		s.add(configName, size)
	}

	conf, err := decodeConfig(text)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrQuantized, configName, err)
	}

	s.quantized = map[string]*quantized{}
	scales := map[string]bool{}
	out := slices.Clone(s.md.Entries)
	for i := range out {
		e := &out[i]
		scale, err := s.scaleOf(e)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrQuantized, e.FQN, err)
		}
		if scale == nil {
			continue
		}

		q, err := s.newQuantized(e, scale, conf.Block)
		if err != nil {
			return fmt.Errorf("%w: %q with %q: %w", ErrQuantized, e.FQN, scale.FQN, err)
		}

		scales[scale.FQN] = true
		s.quantized[e.FQN] = q
		t := *e.Tensor
		t.DType, t.Shape, t.Chunks = to, q.shape, []tensor.Box{tensor.Whole(q.shape)}
		e.Tensor = &t
	}

	s.md.Entries = slices.DeleteFunc(out, func(e meta.Entry) bool { return scales[e.FQN] })
	return nil
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

// quantized decodes a quantised weight. There are two forms:
//
//   - 8-bit floats. The last two dimensions are divided into blocks, with a factor for each
//     block.
//   - 4-bit floats, two in a byte, the lower half first. The last dimension counts the
//     bytes of a group, and the dimension before it the groups. Each group has a power
//     of two as its factor.
type quantized struct {
	store          blob.Store
	shape          []int64 // of the decoded weight
	weight, scale  *reading.Region
	stored, scales []int64       // the shapes of the stored weight and of the factors
	blocks         tensor.Blocks // zero: the weight has groups
}

var _ reading.Decoder = (*quantized)(nil)

// newQuantized returns the decoder of a weight. block is the shape of the blocks of 8-bit
// floats.
func (s *source) newQuantized(weight, scale *meta.Entry, block []int64) (*quantized, error) {
	for _, e := range []*meta.Entry{weight, scale} {
		if n := len(e.Tensor.Chunks); n != 1 {
			return nil, fmt.Errorf("%q is cut into %d chunks", e.FQN, n)
		}
	}

	q := &quantized{
		store: s.store, shape: weight.Tensor.Shape, weight: regionOf(weight, 0), scale: regionOf(scale, 0),
		stored: weight.Tensor.Shape, scales: scale.Tensor.Shape,
	}

	k := len(q.stored) - 2
	if weight.Tensor.DType != tensor.Uint8 {
		q.blocks = tensor.Blocks{Rows: block[0], Columns: block[1]}
		want, err := q.blocks.Factors(q.stored)
		if err != nil {
			return nil, err
		}
		if !slices.Equal(q.scales, want) {
			return nil, fmt.Errorf("factors of shape %v for blocks of %v in %v: want %v", q.scales, q.blocks, q.stored, want)
		}
		return q, nil
	}

	if d := scale.Tensor.DType; d != tensor.Uint8 && d != tensor.Float8E8M0FNU { // two names for the same exponents
		return nil, fmt.Errorf("factors of type %v", d)
	}

	q.scale.DType = tensor.Uint8
	if k < 0 || !slices.Equal(q.stored[:k+1], q.scales) {
		return nil, fmt.Errorf("factors of shape %v for groups of shape %v", q.scales, q.stored)
	}
	if q.stored[k] > 0 && q.stored[k+1] > math.MaxInt64/2/q.stored[k] {
		return nil, fmt.Errorf("groups of shape %v", q.stored)
	}

	q.shape = append(slices.Clone(q.stored[:k]), q.stored[k]*q.stored[k+1]*2)
	return q, nil
}

func ceilDiv(a, b int64) int64 {
	if a == 0 {
		return 0
	}
	return (a-1)/b + 1
}

// partElements bounds the numbers that are decoded at once: enough to hide the cost
// of a request.
const partElements = 4 << 20

// Cut divides a box along its first dimensions. A number that is being decoded takes four
// bytes, and its stored form fewer than that.
func (q *quantized) Cut(box tensor.Box, budget int64) []tensor.Box {
	return box.Cut(max(1, min(partElements, budget/8)))
}

// Decode reads the blocks or groups that hold a box, and their factors.
func (q *quantized) Decode(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	if box.Empty() {
		return 0, nil
	}

	decode := q.decodeGroups
	if q.blocks.Rows > 0 {
		decode = q.decodeBlocks
	}

	var read int64
	numbers, err := decode(box, func(r *reading.Region, d tensor.DType, sizes []int64, at tensor.Box) (*tensor.Tensor, error) {
		x, err := tensor.New(d, at.Sizes)
		if err != nil {
			return nil, err
		}
		n, err := reading.ReadBox(ctx, q.store, r, sizes, at, x, budget)
		read += n
		return x, err
	})
	if err == nil {
		err = tensor.Convert(dst, numbers, tensor.CastInRange)
	}
	return read, err
}

// readFunc reads a box of a stored tensor and converts it to the type d.
type readFunc func(r *reading.Region, d tensor.DType, sizes []int64, box tensor.Box) (*tensor.Tensor, error)

func (q *quantized) decodeBlocks(box tensor.Box, read readFunc) (*tensor.Tensor, error) {
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

func (q *quantized) decodeGroups(box tensor.Box, read readFunc) (*tensor.Tensor, error) {
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
