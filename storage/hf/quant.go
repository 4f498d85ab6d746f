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
	scaleInv    = "_scale_inv" // after the name of the weight
	scaleOther  = "_scale"     // after the name of a weight of another kind
	blocksEnd   = "_blocks"
	scalesEnd   = "_scales"
	blockDigits = 128 // rows and columns of a block, unless the configuration says otherwise
)

// methods are the kinds of quantisation whose form is known.
var methods = []string{"", "fp8", "mxfp4"}

// quantConfig is what a model's configuration says of its quantisation.
type quantConfig struct {
	Method string  `json:"quant_method"`
	Block  []int64 `json:"weight_block_size"`
}

// maxConfig bounds the text of a configuration.
const maxConfig = 16 << 20

// readConfig reads the configuration of the model, if there is one.
func readConfig(ctx context.Context, store blob.Store) (quantConfig, error) {
	b, err := blob.ReadAll(ctx, store, configName, maxConfig)
	if err != nil {
		return quantConfig{}, err
	}
	c, err := decodeConfig(b)
	if err != nil {
		return c, fmt.Errorf("%w: %s: %w", ErrQuantized, configName, err)
	}
	return c, nil
}

// decodeConfig returns what a configuration says of quantisation, with the
// defaults for what it does not contain.
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
	c := defaultConfig()
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

func defaultConfig() quantConfig { return quantConfig{Block: []int64{blockDigits, blockDigits}} }

// dequantize replaces the quantised weights among the entries by the numbers
// that they stand for, and drops their scales.
func (s *source) dequantize(ctx context.Context, dir *folder, to tensor.DType) error {
	if err := s.md.CheckWhole(nil); err != nil { // a scale may be missing
		return err
	}
	conf := defaultConfig()
	if size, ok := dir.other[configName]; ok {
		var err error
		if conf, err = readConfig(ctx, s.store); err != nil {
			return err
		}
		s.add(configName, size)
	}
	s.made = map[string]reading.Decoder{}
	scales := map[string]bool{}
	out := slices.Clone(s.md.Entries)
	for i := range out {
		e := &out[i]
		scale, make, err := s.pair(e, conf)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrQuantized, e.FQN, err)
		}
		if scale == nil {
			continue
		}
		m, shape, err := make(e, scale)
		if err != nil {
			return fmt.Errorf("%w: %q with %q: %w", ErrQuantized, e.FQN, scale.FQN, err)
		}
		scales[scale.FQN] = true
		s.made[e.FQN] = m
		t := *e.Tensor
		t.DType, t.Shape, t.Chunks = to, shape, []tensor.Box{tensor.Whole(shape)}
		e.Tensor = &t
	}
	s.md.Entries = slices.DeleteFunc(out, func(e meta.Entry) bool { return scales[e.FQN] })
	return nil
}

// pairing makes the maker of a weight from it and its scales, and returns the
// shape of what is made.
type pairing func(weight, scale *meta.Entry) (reading.Decoder, []int64, error)

// pair returns the scales of an entry and what makes numbers of the two, or none
// if the entry is not quantised.
func (s *source) pair(e *meta.Entry, conf quantConfig) (*meta.Entry, pairing, error) {
	d := e.Tensor.DType
	if scale, ok := s.md.Find(e.FQN + scaleInv); ok && isFloat8(d) {
		return scale, func(w, sc *meta.Entry) (reading.Decoder, []int64, error) { return s.newBlocks(w, sc, conf.Block) }, nil
	}
	if _, ok := s.md.Find(e.FQN + scaleOther); ok && isFloat8(d) {
		return nil, nil, fmt.Errorf("scaled by %q, which is not known", e.FQN+scaleOther)
	}
	if base, ok := strings.CutSuffix(e.FQN, blocksEnd); ok && d == tensor.Uint8 {
		if scale, ok := s.md.Find(base + scalesEnd); ok {
			return scale, s.newGroups, nil
		}
	}
	return nil, nil, nil
}

func isFloat8(d tensor.DType) bool {
	switch d {
	case tensor.Float8E4M3FN, tensor.Float8E4M3FNUZ, tensor.Float8E5M2, tensor.Float8E5M2FNUZ:
		return true
	}
	return false
}

// whole returns the region of a tensor that is not sharded.
func whole(e *meta.Entry) (*reading.Region, error) {
	t := e.Tensor
	if len(t.Chunks) != 1 {
		return nil, fmt.Errorf("%q is cut into %d chunks", e.FQN, len(t.Chunks))
	}
	l := &t.Locs[0]
	return &reading.Region{File: l.File, Offset: l.Offset, End: l.Offset + l.Length, DType: t.DType}, nil
}

// bothWhole returns the regions of a weight and of its scales.
func bothWhole(weight, scale *meta.Entry) (w, s *reading.Region, err error) {
	if w, err = whole(weight); err != nil {
		return nil, nil, err
	}
	s, err = whole(scale)
	return w, s, err
}

// partElements bounds the numbers that are made at once: enough to hide the cost
// of a request.
const partElements = 4 << 20

// cutBox cuts a box into parts of at most most elements each, along its first
// dimensions.
func cutBox(box tensor.Box, most int64) []tensor.Box {
	n := box.Volume()
	d := slices.IndexFunc(box.Sizes, func(s int64) bool { return s > 1 })
	if n <= most || d < 0 {
		return []tensor.Box{box}
	}
	per := max(1, most/(n/box.Sizes[d]))
	var out []tensor.Box
	for at := box.Offsets[d]; at < box.End(d); at += per {
		p := tensor.Box{Offsets: slices.Clone(box.Offsets), Sizes: slices.Clone(box.Sizes)}
		p.Offsets[d], p.Sizes[d] = at, min(per, box.End(d)-at)
		out = append(out, cutBox(p, most)...)
	}
	return out
}

// cutFor cuts a box into parts whose making takes about budget bytes: a number
// on its way takes its four bytes, and less than that for what it is made of.
func cutFor(box tensor.Box, budget int64) []tensor.Box {
	return cutBox(box, max(1, min(partElements, budget/8)))
}

// blocks makes the numbers of a weight of 8-bit floats whose last two dimensions
// are cut into blocks, with a factor for each.
type blocks struct {
	store         blob.Store
	weight, scale *reading.Region
	shape, scales []int64 // of the weight and of the factors
	rows, cols    int64   // of a block
}

var _ reading.Decoder = (*blocks)(nil)

// newBlocks pairs a weight with its factors.
func (s *source) newBlocks(weight, scale *meta.Entry, block []int64) (reading.Decoder, []int64, error) {
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

// Decode reads a box of the weight and the factors that it needs.
func (m *blocks) Decode(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
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

// groups makes the numbers of a weight of 4-bit floats, two in a byte, the lower
// half first: its last dimension counts the bytes of a group, the one before the
// groups, and each group has a power of two as its factor.
type groups struct {
	store         blob.Store
	bytes, scale  *reading.Region
	shape, scales []int64 // of the bytes and of the factors
}

var _ reading.Decoder = (*groups)(nil)

// fp4 are the numbers that four bits stand for.
var fp4 = [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -.5, -1, -1.5, -2, -3, -4, -6}

// bias is what is taken off a stored exponent.
const bias = 127

// newGroups pairs the bytes of a weight with its factors.
func (s *source) newGroups(weight, scale *meta.Entry) (reading.Decoder, []int64, error) {
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

// Decode reads the groups that hold a box, and their factors.
func (m *groups) Decode(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
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
