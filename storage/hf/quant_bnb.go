package hf

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// stateEnd begins the end of the name of a tensor whose bytes are a quantState. The kind of the
// 4-bit numbers follows.
const stateEnd = ".quant_state.bitsandbytes__"

// quantState describes a weight of 4-bit numbers of bitsandbytes.
type quantState struct {
	Kind         string  `json:"quant_type"`
	Block        int64   `json:"blocksize"`
	DType        string  `json:"dtype"`
	Shape        []int64 `json:"shape"`
	NestedBlock  int64   `json:"nested_blocksize"`
	NestedDType  string  `json:"nested_dtype"`
	NestedOffset float64 `json:"nested_offset"`

	dtype    tensor.DType
	elements int64
}

// The ends of the names of the maxima of blocks, after the name of the weight, and of the maxima of
// rows, after the name of the module.
const (
	maximaEnd = ".absmax"
	rowsEnd   = ".SCB"
)

// maxState bounds the text of a quantState.
const maxState = 64 << 10

// decodeState decodes and checks the state of a weight. nested means that the factors are
// quantised too.
func decodeState(b []byte, nested bool) (*quantState, error) {
	s := &quantState{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, err
	}

	var err error
	if s.elements, err = tensor.NumElements(s.Shape); err != nil {
		return nil, err
	}
	s.dtype, err = tensor.ParseDType(s.DType)
	switch {
	case err != nil:
		return nil, err
	case !slices.Contains([]tensor.DType{tensor.Float32, tensor.Float16, tensor.BFloat16}, s.dtype):
		return nil, fmt.Errorf("numbers of the type %v", s.dtype)
	case len(s.Shape) == 0:
		return nil, fmt.Errorf("a shape without dimensions")
	case s.Block <= 0:
		return nil, fmt.Errorf("blocks of %d", s.Block)
	case nested && s.NestedBlock <= 0:
		return nil, fmt.Errorf("nested blocks of %d", s.NestedBlock)
	case nested && s.NestedDType != "float32":
		return nil, fmt.Errorf("nested factors of the type %q", s.NestedDType)
	}
	return s, nil
}

// unit127 is what bitsandbytes multiplies 8-bit numbers by: 1/127 in float32.
const unit127 = float32(0.007874015718698502)

// bitsAndBytes is the rule of bitsandbytes: 4-bit numbers with their state beside them, and rows of
// 8-bit numbers with their maxima in .SCB.
func bitsAndBytes(z *quantiser, e *meta.Entry) (*decoded, error) {
	for _, kind := range []string{"nf4", "fp4"} {
		if name := e.FQN + stateEnd + kind; z.has(name) {
			return fourBits(z, e, name)
		}
	}

	module, ok := strings.CutSuffix(e.FQN, weightEnd)
	switch d := e.Tensor.DType; {
	case z.has(e.FQN + maximaEnd):
		return nil, fmt.Errorf("the checkpoint has no %q, nor one of fp4", e.FQN+stateEnd+"nf4")
	case ok && d != tensor.Int8 && z.has(module+rowsEnd):
		return nil, fmt.Errorf("it is %v, and there is %q", d, module+rowsEnd)
	case !ok || d != tensor.Int8:
		return nil, nil
	}
	return eightBits(z, e, module)
}

// eightBits is the rule of rows of 8-bit numbers.
func eightBits(z *quantiser, e *meta.Entry, module string) (*decoded, error) {
	if _, err := z.part(e.FQN); err != nil {
		return nil, err
	}
	scale, err := z.part(module + rowsEnd)
	if err != nil {
		return nil, err
	}
	if len(e.Tensor.Shape) != 2 || len(scale.Tensor.Shape) != 1 || scale.Tensor.DType != tensor.Float32 {
		return nil, fmt.Errorf("it has the shape %v and %q %v of the shape %v: want rows, and a float32 for each", e.Tensor.Shape, scale.FQN, scale.Tensor.DType, scale.Tensor.Shape)
	}

	names := []string{scale.FQN}
	if name := module + ".weight_format"; z.has(name) {
		format, err := z.part(name)
		if err != nil {
			return nil, err
		}
		if format.NumBytes() != 1 {
			return nil, fmt.Errorf("%q has the shape %v: want one byte", name, format.Tensor.Shape)
		}
		x, err := z.whole(format, tensor.Uint8)
		if err != nil {
			return nil, err
		}
		if n := x.Contents()[0]; n != 0 {
			return nil, fmt.Errorf("%q is %d: only rows (0) are known", name, n)
		}
		names = append(names, name)
	}

	a := &affine{
		numbers: plain(e, e.Tensor.Shape), factors: plain(scale, []int64{scale.Tensor.Shape[0], 1}),
		blocks: tensor.Blocks{Rows: 1, Columns: max(1, e.Tensor.Shape[1])}, then: unit127,
	}
	shape, err := a.fit()
	return &decoded{e.FQN, shape, tensor.Float32, a, names}, err
}

// fourBits is the rule of 4-bit numbers. state is the name of the state.
func fourBits(z *quantiser, e *meta.Entry, state string) (*decoded, error) {
	f := &fours{nested: z.has(e.FQN + ".nested_absmax")}
	names := []string{state}
	part := func(end string, d tensor.DType) (*meta.Entry, error) {
		p, err := z.part(e.FQN + end)
		if err != nil {
			return nil, err
		}
		names = append(names, p.FQN)
		if p.Tensor.DType != d || len(p.Tensor.Shape) != 1 {
			return nil, fmt.Errorf("%q is %v of the shape %v: want a list of %v", p.FQN, p.Tensor.DType, p.Tensor.Shape, d)
		}
		return p, nil
	}

	for _, name := range []string{e.FQN, state} {
		if _, err := z.part(name); err != nil {
			return nil, err
		}
	}
	if err := f.readState(z, state); err != nil {
		return nil, fmt.Errorf("%q: %w", state, err)
	}

	kinds := []struct {
		end    string
		dtype  tensor.DType
		length int64
		region **reading.Region
	}{
		{".quant_map", tensor.Float32, 16, &f.numbers},
		{maximaEnd, tensor.Float32, ceilDiv(f.elements, f.Block), &f.factors},
	}
	if f.nested {
		n := kinds[1].length
		kinds[1].dtype = tensor.Uint8
		kinds = append(kinds, kinds[0], kinds[0])
		kinds[2].end, kinds[2].length, kinds[2].region = ".nested_quant_map", 256, &f.nestedMap
		kinds[3].end, kinds[3].length, kinds[3].region = ".nested_absmax", ceilDiv(n, f.NestedBlock), &f.nestedFactors
	}
	for _, k := range kinds {
		p, err := part(k.end, k.dtype)
		if err != nil {
			return nil, err
		}
		if n := p.Tensor.Shape[0]; n != k.length {
			return nil, fmt.Errorf("%q has %d elements: want %d", p.FQN, n, k.length)
		}
		*k.region = regionOf(p, 0)
	}

	// The numbers may be stored as elements of any type.
	r := *regionOf(e, 0)
	r.DType = tensor.Uint8
	f.codes = &r
	if n := r.End - r.Offset; n != ceilDiv(f.elements, 2) {
		return nil, fmt.Errorf("it has %d bytes for %d numbers of 4 bits", n, f.elements)
	}
	return &decoded{e.FQN, f.Shape, f.dtype, f, names}, nil
}

// fours is a weight of 4-bit numbers, the upper half of a byte first, in blocks of the whole
// weight in row-major order.
type fours struct {
	*quantState
	nested                   bool
	codes, numbers, factors  *reading.Region
	nestedMap, nestedFactors *reading.Region
}

// readState reads the description of the weight.
func (f *fours) readState(z *quantiser, name string) error {
	e, err := z.part(name)
	if err != nil {
		return err
	}
	if n := e.NumBytes(); n > maxState || e.Tensor.DType != tensor.Uint8 {
		return fmt.Errorf("%d bytes of %v: want a short text", n, e.Tensor.DType)
	}
	x, err := z.whole(e, tensor.Uint8)
	if err != nil {
		return err
	}
	f.quantState, err = decodeState(x.Contents(), f.nested)
	return err
}

// rowElements returns the elements of one place in the first dimension.
func (f *fours) rowElements() int64 { return tensor.Box{Sizes: f.Shape[1:]}.Volume() }

// cut divides a box along its first dimension, because whole rows are decoded.
func (f *fours) cut(box tensor.Box, most int64) []tensor.Box {
	rows := max(1, most/max(1, f.rowElements()))
	var out []tensor.Box
	for at := box.Offsets[0]; at < box.End(0); at += rows {
		out = append(out, box.Between(0, at, min(at+rows, box.End(0))))
	}
	if len(out) == 0 {
		out = append(out, box)
	}
	return out
}

// decode decodes the rows that hold a box.
func (f *fours) decode(box tensor.Box, read readFunc) (*tensor.Tensor, error) {
	row := f.rowElements()
	low, high := box.Offsets[0]*row, box.End(0)*row
	line := func(r *reading.Region, d tensor.DType, length, first, end int64) (*tensor.Tensor, error) {
		return read(r, d, []int64{length}, tensor.Box{Offsets: []int64{first}, Sizes: []int64{end - first}})
	}
	packed, err := line(f.codes, tensor.Uint8, ceilDiv(f.elements, 2), low/2, ceilDiv(high, 2))
	if err != nil {
		return nil, err
	}

	values, err := floatsOf(line(f.numbers, tensor.Float32, 16, 0, 16))
	if err != nil {
		return nil, err
	}
	first := low / f.Block
	factors, err := f.factorsIn(line, first, ceilDiv(high, f.Block))
	if err != nil {
		return nil, err
	}

	out := make([]float32, high-low)
	bytes := packed.Contents()
	for i := range out {
		at := low + int64(i)
		b := bytes[at/2-low/2]
		if at%2 == 0 {
			b >>= 4
		}
		out[i] = values[b&15] * factors[at/f.Block-first]
	}

	shape := slices.Clone(f.Shape)
	shape[0] = box.Sizes[0]
	x, err := tensor.Of(shape, out)
	if err != nil {
		return nil, err
	}
	inner := tensor.Box{Offsets: slices.Clone(box.Offsets), Sizes: box.Sizes}
	inner.Offsets[0] = 0
	return x.Narrow(inner)
}

// lineFunc reads a range of a list of a length.
type lineFunc func(r *reading.Region, d tensor.DType, length, first, end int64) (*tensor.Tensor, error)

// factorsIn returns the factors of some blocks. Nested factors are quantised themselves, in blocks
// of 8-bit numbers, with an offset.
func (f *fours) factorsIn(line lineFunc, first, end int64) ([]float32, error) {
	n := ceilDiv(f.elements, f.Block)
	if !f.nested {
		return floatsOf(line(f.factors, tensor.Float32, n, first, end))
	}

	codes, err := line(f.factors, tensor.Uint8, n, first, end)
	if err != nil {
		return nil, err
	}
	values, err := floatsOf(line(f.nestedMap, tensor.Float32, 256, 0, 256))
	if err != nil {
		return nil, err
	}
	outer := first / f.NestedBlock
	factors, err := floatsOf(line(f.nestedFactors, tensor.Float32, ceilDiv(n, f.NestedBlock), outer, ceilDiv(end, f.NestedBlock)))
	if err != nil {
		return nil, err
	}

	out := make([]float32, end-first)
	for i, c := range codes.Contents() {
		// The conversion keeps the product from being fused with the sum.
		out[i] = float32(values[c]*factors[(first+int64(i))/f.NestedBlock-outer]) + float32(f.NestedOffset)
	}
	return out, nil
}

func floatsOf(x *tensor.Tensor, err error) ([]float32, error) {
	if err != nil {
		return nil, err
	}
	return tensor.Values[float32](x)
}
