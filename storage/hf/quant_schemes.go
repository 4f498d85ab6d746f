package hf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The suffixes of the names of the tensors of a module.
const (
	weightEnd = ".weight"
	packedEnd = ".weight_packed"
	scaleEnd  = ".weight_scale"
	wordsEnd  = ".qweight"
)

// codes returns the numbers of all codes of that many bits.
func codes(bits int64, value func(code int64) float32) []float32 {
	out := make([]float32, 1<<bits)
	for i := range out {
		out[i] = value(int64(i))
	}
	return out
}

// minus returns packed whole numbers that are stored with an offset.
func minus(bits int64, axis int, offset int64) *packing {
	return &packing{bits: bits, word: 32, axis: axis, values: codes(bits, func(c int64) float32 { return float32(c - offset) })}
}

// floats4 is pairs of 4-bit floats in bytes, the lower half first.
var floats4 = sync.OnceValue(func() *packing {
	return &packing{bits: 4, word: 8, axis: 1, values: fp4[:]}
})

// exponents is powers of two as bytes, with the bias of a float32.
var exponents = sync.OnceValue(func() *packing {
	return &packing{bits: 8, word: 8, axis: 1, values: codes(8, func(c int64) float32 { return float32(math.Ldexp(1, int(c)-bias)) })}
})

// blocks returns the blocks of weights of a shape that share a factor.
func (w *weightsConfig) blocks(shape []int64) (tensor.Blocks, error) {
	rows, cols := max(1, shape[0]), max(1, shape[1])
	switch w.Strategy {
	case "tensor":
		return tensor.Blocks{Rows: rows, Columns: cols}, nil
	case "channel":
		return tensor.Blocks{Rows: 1, Columns: cols}, nil
	case "group", "tensor_group":
		if w.GroupSize == nil || *w.GroupSize <= 0 {
			return tensor.Blocks{}, fmt.Errorf("group_size %s", text(w.GroupSize))
		}
		return tensor.Blocks{Rows: 1, Columns: *w.GroupSize}, nil
	case "block":
		if len(w.Block) != 2 || w.Block[0] <= 0 || w.Block[1] <= 0 {
			return tensor.Blocks{}, fmt.Errorf("block_structure %v", w.Block)
		}
		return tensor.Blocks{Rows: w.Block[0], Columns: w.Block[1]}, nil
	}
	return tensor.Blocks{}, fmt.Errorf("the strategy %q", w.Strategy)
}

// besideWeights are the tensors of a module of compressed-tensors that only a program that
// computes with quantised numbers needs.
var besideWeights = []string{".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".output_zero_point"}

// cacheScales are the tensors of an attention whose cache is quantised.
var cacheScales = []string{".q_scale", ".k_scale", ".v_scale"}

// compressed is the rule of compressed-tensors: weights with .weight_scale, and perhaps
// .weight_zero_point, .weight_g_idx and .weight_global_scale.
func compressed(z *quantiser, e *meta.Entry) (*decoded, error) {
	if z.conf.Cache != nil && slices.ContainsFunc(cacheScales, func(end string) bool { return strings.HasSuffix(e.FQN, end) }) {
		return &decoded{parts: []string{e.FQN}}, nil
	}
	module, words := strings.CutSuffix(e.FQN, packedEnd)
	if !words {
		var ok bool
		if module, ok = strings.CutSuffix(e.FQN, weightEnd); !ok {
			return nil, nil
		}
		if d := e.Tensor.DType; d != tensor.Int8 && d != tensor.Float8E4M3FN {
			if z.has(module + scaleEnd) {
				return nil, fmt.Errorf("it is %v, and there is %q", d, module+scaleEnd)
			}
			return nil, nil
		}
	}

	g, err := z.conf.groupOf(module)
	if err != nil {
		return nil, err
	}
	c := &compressedWeight{z: z, module: module, weightsConfig: g.Weights, out: decoded{name: module + weightEnd}}
	if err := c.read(e, z.conf.formatOf(g), words); err != nil {
		return nil, err
	}

	for _, end := range besideWeights {
		if z.has(module + end) {
			c.out.parts = append(c.out.parts, module+end)
		}
	}
	return &c.out, nil
}

// compressedWeight is a weight of compressed-tensors while its parts are looked for.
type compressedWeight struct {
	*weightsConfig
	z      *quantiser
	module string
	out    decoded
}

// part returns a tensor of the module, which is left out of the result.
func (c *compressedWeight) part(end string) (*meta.Entry, error) {
	e, err := c.z.part(c.module + end)
	if err == nil {
		c.out.parts = append(c.out.parts, e.FQN)
	}
	return e, err
}

// read fills in the result.
func (c *compressedWeight) read(e *meta.Entry, format string, words bool) error {
	if wide := format == formatPack || format == formatNVFP4 || format == formatMXFP4; wide != words {
		return fmt.Errorf("a tensor of that name does not belong to the format %s", format)
	}
	if _, err := c.z.part(e.FQN); err != nil {
		return err
	}
	if len(e.Tensor.Shape) != 2 {
		return fmt.Errorf("it has the shape %v: want two dimensions", e.Tensor.Shape)
	}
	scale, err := c.part(scaleEnd)
	if err != nil {
		return err
	}

	a := &affine{}
	c.out.form, c.out.dtype = a, scale.Tensor.DType
	switch format {
	case formatPack:
		err = c.packed(a, e)
	case formatNVFP4, formatMXFP4:
		err = c.fours(a, e, format)
	case formatMXFP8:
		c.out.dtype = tensor.BFloat16
		err = c.plain(a, e)
	default:
		err = c.plain(a, e)
	}
	if err != nil {
		return err
	}
	if !slices.Contains([]tensor.DType{tensor.Float32, tensor.Float16, tensor.BFloat16}, c.out.dtype) {
		return fmt.Errorf("%q is %v", scale.FQN, scale.Tensor.DType)
	}

	if a.blocks, err = c.blocks(a.numbers.shape); err != nil {
		return err
	}
	if err := c.scales(a, scale, format); err != nil {
		return err
	}
	if c.z.has(c.module+".weight_zero_point") || c.Symmetric != nil && !*c.Symmetric {
		if err := c.zeros(a, format == formatPack); err != nil {
			return err
		}
	}
	if c.z.has(c.module+".weight_g_idx") || c.ActOrder == "group" || c.ActOrder == true {
		index, err := c.part(".weight_g_idx")
		if err != nil {
			return err
		}
		if a.index, err = groupIndex(index); err != nil {
			return err
		}
		a.axis = 1
	}
	c.out.shape, err = a.fit()
	return err
}

// plain is weights of one number for each element.
func (c *compressedWeight) plain(a *affine, e *meta.Entry) error {
	want := tensor.Int8
	if c.Type == "float" {
		want = tensor.Float8E4M3FN
	}
	if e.Tensor.DType != want {
		return fmt.Errorf("it is %v; want %v", e.Tensor.DType, want)
	}
	a.numbers = plain(e, e.Tensor.Shape)
	return nil
}

// packed is whole numbers in 32-bit words, with the shape of the weight as a tensor.
func (c *compressedWeight) packed(a *affine, e *meta.Entry) error {
	of, err := c.part(".weight_shape")
	if err != nil {
		return err
	}
	if !of.Tensor.DType.IsInteger() || !slices.Equal(of.Tensor.Shape, []int64{2}) {
		return fmt.Errorf("%q is %v of the shape %v: want two whole numbers", of.FQN, of.Tensor.DType, of.Tensor.Shape)
	}
	x, err := c.z.whole(of, tensor.Int64)
	if err != nil {
		return err
	}
	shape, err := tensor.Values[int64](x)
	if err != nil {
		return err
	}
	if shape[0] < 0 || shape[1] < 0 {
		return fmt.Errorf("%q is %v", of.FQN, shape)
	}
	a.numbers, err = packed(e, minus(c.Bits, 1, 1<<(c.Bits-1)), shape)
	return err
}

// fours is pairs of 4-bit floats in bytes. Programs always make bfloat16 of them.
func (c *compressedWeight) fours(a *affine, e *meta.Entry, format string) (err error) {
	n := e.Tensor.Shape
	if n[1] > math.MaxInt64/8 {
		return fmt.Errorf("it has the shape %v", n)
	}
	c.out.dtype = tensor.BFloat16
	if a.numbers, err = packed(e, floats4(), []int64{n[0], 2 * n[1]}); err != nil || format == formatMXFP4 {
		return err
	}

	global, err := c.part(".weight_global_scale")
	if err != nil {
		return err
	}
	if global.NumBytes() != 4 || global.Tensor.DType != tensor.Float32 {
		return fmt.Errorf("%q is %v of the shape %v: want one float32", global.FQN, global.Tensor.DType, global.Tensor.Shape)
	}
	a.divisor = plain(global, []int64{1, 1})
	return nil
}

// scales sets the factors.
func (c *compressedWeight) scales(a *affine, scale *meta.Entry, format string) error {
	if format == formatMXFP4 || format == formatMXFP8 {
		if n := len(scale.Tensor.Shape); n != 2 {
			return fmt.Errorf("%q has %d dimensions: want 2", scale.FQN, n)
		}
		var err error
		a.factors, err = packed(scale, exponents(), scale.Tensor.Shape)
		return err
	}
	if format == formatNVFP4 && scale.Tensor.DType != tensor.Float8E4M3FN {
		return fmt.Errorf("%q is %v; want %v", scale.FQN, scale.Tensor.DType, tensor.Float8E4M3FN)
	}

	shape, err := c.grid(a, scale)
	a.factors = plain(scale, shape)
	return err
}

// grid returns the shape of a tensor with an element for each block as two dimensions. A tensor
// with one factor, or one for each row, may have fewer of them.
func (c *compressedWeight) grid(a *affine, e *meta.Entry) ([]int64, error) {
	if len(e.Tensor.Shape) == 2 {
		return e.Tensor.Shape, nil
	}
	want, err := a.blocks.Factors(a.numbers.shape)
	if err != nil {
		return nil, err
	}
	n, err := tensor.NumElements(e.Tensor.Shape)
	if err != nil {
		return nil, err
	}
	if len(e.Tensor.Shape) > 2 || want[1] != 1 || n != want[0] {
		return nil, fmt.Errorf("%q has the shape %v: want %v", e.FQN, e.Tensor.Shape, want)
	}
	return want, nil
}

// zeros sets the zero points, which are packed along the rows if the weight is packed.
func (c *compressedWeight) zeros(a *affine, words bool) error {
	e, err := c.part(".weight_zero_point")
	if err != nil {
		return err
	}
	if words && e.Tensor.DType == tensor.Int32 {
		a.zeros, err = packed(e, minus(c.Bits, 0, 1<<(c.Bits-1)), a.factors.shape)
		return err
	}
	if d := e.Tensor.DType; d != tensor.Int8 && d != tensor.Float8E4M3FN {
		return fmt.Errorf("%q is %v", e.FQN, d)
	}
	shape, err := c.grid(a, e)
	a.zeros = plain(e, shape)
	return err
}

// groupIndex returns the index of groups that a tensor holds.
func groupIndex(e *meta.Entry) (*matrix, error) {
	if !e.Tensor.DType.IsInteger() || len(e.Tensor.Shape) != 1 {
		return nil, fmt.Errorf("%q is %v of the shape %v: want a list of whole numbers", e.FQN, e.Tensor.DType, e.Tensor.Shape)
	}
	return plain(e, []int64{1, e.Tensor.Shape[0]}), nil
}

// ofWords returns the tensors .qweight, .qzeros and .scales of a module of GPTQ or AWQ, or nil if
// e is not a .qweight.
func ofWords(z *quantiser, e *meta.Entry) (module string, parts []*meta.Entry, err error) {
	module, ok := strings.CutSuffix(e.FQN, wordsEnd)
	if !ok {
		return "", nil, nil
	}
	for _, end := range []string{wordsEnd, ".qzeros", ".scales"} {
		p, err := z.part(module + end)
		if err != nil {
			return "", nil, err
		}
		if len(p.Tensor.Shape) != 2 {
			return "", nil, fmt.Errorf("%q has the shape %v: want two dimensions", p.FQN, p.Tensor.Shape)
		}
		parts = append(parts, p)
	}
	if d := parts[2].Tensor.DType; d != tensor.Float16 && d != tensor.BFloat16 && d != tensor.Float32 {
		return "", nil, fmt.Errorf("%q is %v", parts[2].FQN, d)
	}
	return module, parts, nil
}

// gptq is the rule of GPTQ: whole numbers [in, out] packed along in, with zero points packed along
// out. The first version stores the zero points minus one.
func gptq(z *quantiser, e *meta.Entry) (*decoded, error) {
	module, parts, err := ofWords(z, e)
	if module == "" {
		return nil, err
	}

	bits, shape, scales := z.conf.Bits, e.Tensor.Shape, parts[2]
	if shape[0] > math.MaxInt64/32 {
		return nil, fmt.Errorf("it has the shape %v", shape)
	}
	in := shape[0] * 32 / bits
	a := &affine{transposed: true, blocks: tensor.Blocks{Rows: z.conf.groupRows(in), Columns: 1}, factors: plain(scales, scales.Tensor.Shape)}
	if a.numbers, err = packed(e, minus(bits, 0, 0), []int64{in, shape[1]}); err != nil {
		return nil, err
	}

	stored := &packing{bits: bits, word: 32, axis: 1, values: codes(bits, func(c int64) float32 { return float32((c + 1) & (1<<bits - 1)) })}
	if z.conf.Checkpoint == "gptq_v2" {
		stored = minus(bits, 1, 0)
	}
	if a.zeros, err = packed(parts[1], stored, scales.Tensor.Shape); err != nil {
		return nil, err
	}

	names := []string{parts[1].FQN, scales.FQN}
	if name := module + ".g_idx"; z.has(name) || z.conf.ActOrder {
		index, err := z.part(name)
		if err != nil {
			return nil, err
		}
		if a.index, err = groupIndex(index); err != nil {
			return nil, err
		}
		names = append(names, name)
	}

	out, err := a.fit()
	return &decoded{module + weightEnd, out, scales.Tensor.DType, a, names}, err
}

// awqOrder is where the numbers of each eight columns lie in their word.
var awqOrder = []int64{0, 4, 1, 5, 2, 6, 3, 7}

// awq is the rule of AWQ: whole numbers [in, out] packed along out, in an order of their own, with
// zero points alike.
func awq(z *quantiser, e *meta.Entry) (*decoded, error) {
	module, parts, err := ofWords(z, e)
	if module == "" {
		return nil, err
	}

	in, scales := e.Tensor.Shape[0], parts[2]
	a := &affine{transposed: true, blocks: tensor.Blocks{Rows: z.conf.groupRows(in), Columns: 1}, factors: plain(scales, scales.Tensor.Shape)}
	p := minus(4, 1, 0)
	p.order = awqOrder
	if scales.Tensor.Shape[1]%8 != 0 {
		return nil, errors.New("its columns are not a multiple of 8")
	}
	if a.numbers, err = packed(e, p, []int64{in, scales.Tensor.Shape[1]}); err != nil {
		return nil, err
	}
	if a.zeros, err = packed(parts[1], p, scales.Tensor.Shape); err != nil {
		return nil, err
	}

	out, err := a.fit()
	return &decoded{module + weightEnd, out, scales.Tensor.DType, a, []string{parts[1].FQN, scales.FQN}}, err
}
