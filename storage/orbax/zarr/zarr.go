// Package zarr decodes the metadata of arrays in the formats zarr 2 and zarr 3, and the indexes of
// shards, as TensorStore writes them. It reads no files and refuses by name the codecs that it
// does not know. The contract is at Array.
package zarr

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	// ErrMalformed reports metadata or an index that contradicts itself.
	ErrMalformed = errors.New("malformed zarr")
	// ErrUnsupported reports a codec, a data type or an extension that is not read.
	ErrUnsupported = errors.New("unsupported zarr")
)

// The names of the metadata of an array, below its name.
const (
	Metadata2 = ".zarray"
	Metadata3 = "zarr.json"
)

// maxDims bounds the number of dimensions, as TensorStore does.
const maxDims = 32

// Array is the metadata of an array.
type Array struct {
	// Version is the format: 2 or 3.
	Version int
	Shape   []int64
	// Chunk is the shape of a cell of the grid. Cells at the edge are stored in full size. It has no zero.
	Chunk []int64
	Type  Type
	// Fill is the value of the elements of a missing cell, without dimensions. FillErr is set
	// instead if the value is of a form that is not read.
	Fill    *tensor.Tensor
	FillErr error
	// Codec is how a cell is stored if Shards is nil.
	Codec Codec
	// Shards, if not nil, says how a cell is divided into inner chunks.
	Shards *Shards

	separator string // between the numbers of a key
	prefix    string // before the numbers
	single    string // the key of the only cell of an array without dimensions
}

// Codec is how the elements of a chunk are stored.
type Codec struct {
	// Order, if not nil, is the order of the dimensions in which the elements are stored: stored dimension
	// i is dimension Order[i].
	Order []int
	// Zstd means that the bytes are compressed.
	Zstd bool
}

// Shards is how a cell is divided into inner chunks, with an index of where they are.
type Shards struct {
	// Chunk is the shape of an inner chunk, which divides the shape of the cell. All inner chunks
	// are stored in full size.
	Chunk []int64
	Codec Codec
	// AtStart means that the index is before the inner chunks. Otherwise it is after them.
	AtStart bool
	// Sum means that the index ends in a CRC-32C.
	Sum bool
}

// Type is the type of stored elements.
type Type struct {
	// Name is the name in the metadata, such as "float32" or "<f4".
	Name string
	// DType is the type that readers see.
	DType tensor.DType
	// Bits, if not zero, means that an element is a signed integer in the lowest bits of a byte.
	Bits int
	// Raw means that package tensor lacks the type: readers see its bytes.
	Raw bool
}

// types are the types of TensorStore that zarr 2 and zarr 3 call by the same name.
var types = map[string]Type{
	"bool": {DType: tensor.Bool}, "bfloat16": {DType: tensor.BFloat16}, "float16": {DType: tensor.Float16},
	"float32": {DType: tensor.Float32}, "float64": {DType: tensor.Float64},
	"complex64": {DType: tensor.Complex64}, "complex128": {DType: tensor.Complex128},
	"int8": {DType: tensor.Int8}, "int16": {DType: tensor.Int16}, "int32": {DType: tensor.Int32}, "int64": {DType: tensor.Int64},
	"uint8": {DType: tensor.Uint8}, "uint16": {DType: tensor.Uint16}, "uint32": {DType: tensor.Uint32}, "uint64": {DType: tensor.Uint64},
	"int2": {DType: tensor.Int8, Bits: 2}, "int4": {DType: tensor.Int8, Bits: 4},
	"uint2": {DType: tensor.Uint8}, "uint4": {DType: tensor.Uint8},
	"float8_e4m3fn": {DType: tensor.Float8E4M3FN}, "float8_e4m3fnuz": {DType: tensor.Float8E4M3FNUZ},
	"float8_e5m2": {DType: tensor.Float8E5M2}, "float8_e5m2fnuz": {DType: tensor.Float8E5M2FNUZ}, "float8_e8m0fnu": {DType: tensor.Float8E8M0FNU},
	"float8_e3m4": {DType: tensor.Uint8, Raw: true}, "float8_e4m3": {DType: tensor.Uint8, Raw: true},
	"float8_e4m3b11fnuz": {DType: tensor.Uint8, Raw: true}, "float4_e2m1fn": {DType: tensor.Uint8, Raw: true},
}

// numpyTypes are NumPy's names of types of zarr 2, without the byte order.
var numpyTypes = map[string]string{
	"b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
	"f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
}

// extend makes a signed byte of an element of that number of bits.
func extend(b byte, bits int) byte { return byte(int8(b<<(8-bits)) >> (8 - bits)) }

// Resolve converts stored elements to the elements that readers see, in place. It returns nil if
// they are the same.
func (t *Type) Resolve() func(p []byte) {
	if t.Bits == 0 {
		return nil
	}
	return func(p []byte) {
		for i, b := range p {
			p[i] = extend(b, t.Bits)
		}
	}
}

// malformed returns an error that wraps ErrMalformed.
func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// unsupported returns an error that wraps ErrUnsupported.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUnsupported}, args...)...)
}

// null reports whether a field is absent or null.
func null(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// Grid returns the number of cells in each dimension, or nil if a dimension is zero.
func (a *Array) Grid() []int64 { return grid(a.Shape, a.Chunk) }

func grid(shape, chunk []int64) []int64 {
	out := make([]int64, len(shape))
	for d, n := range shape {
		if n == 0 {
			return nil
		}
		out[d] = (n-1)/chunk[d] + 1
	}
	return out
}

// Cell returns the box of a cell of the grid in the array.
func (a *Array) Cell(at []int64) tensor.Box {
	b := tensor.Box{Offsets: make([]int64, len(at)), Sizes: make([]int64, len(at))}
	for d, i := range at {
		b.Offsets[d] = i * a.Chunk[d]
		b.Sizes[d] = min(a.Chunk[d], a.Shape[d]-b.Offsets[d])
	}
	return b
}

// Key returns the key of a cell, below the name of the array.
func (a *Array) Key(at []int64) string {
	if len(at) == 0 {
		return a.single
	}
	out := []byte(a.prefix)
	for d, i := range at {
		if d > 0 {
			out = append(out, a.separator...)
		}
		out = strconv.AppendInt(out, i, 10)
	}
	return string(out)
}

// check checks the shapes.
func (a *Array) check() error {
	if a.Shape == nil || a.Chunk == nil {
		return malformed("no shape, or no shape of chunks")
	}
	if len(a.Shape) > maxDims || len(a.Chunk) != len(a.Shape) {
		return malformed("a shape of %d dimensions with chunks of %d", len(a.Shape), len(a.Chunk))
	}
	if _, err := tensor.NumBytes(a.Type.DType, a.Shape); err != nil {
		return malformed("shape %v: %w", a.Shape, err)
	}
	if err := checkChunk(a.Type.DType, a.Chunk); err != nil {
		return err
	}

	// The cells at the edge must not overflow.
	for d, n := range a.Shape {
		if a.Chunk[d]-1 > (1<<62)-n {
			return malformed("chunks of %v", a.Chunk)
		}
	}
	return nil
}

func checkChunk(d tensor.DType, chunk []int64) error {
	if _, err := tensor.NumBytes(d, chunk); err != nil || slices.ContainsFunc(chunk, func(n int64) bool { return n <= 0 }) {
		return malformed("chunks of %v", chunk)
	}
	return nil
}

// setFill sets the fill value.
func (a *Array) setFill(raw json.RawMessage) {
	a.Fill, a.FillErr = fill(raw, a.Type)
}

// Inner returns the number of inner chunks of a cell in each dimension.
func (a *Array) Inner() []int64 { return grid(a.Chunk, a.Shards.Chunk) }

// IndexBytes returns the size of the index of a shard. It returns an error if the shard has too many
// inner chunks.
func (a *Array) IndexBytes() (int64, error) {
	n := int64(1)
	for _, k := range a.Inner() {
		if k > maxInner/n {
			return 0, unsupported("shards of %v with inner chunks of %v: more than %d", a.Chunk, a.Shards.Chunk, maxInner)
		}
		n *= k
	}
	n *= entryBytes
	if a.Shards.Sum {
		n += indexSum
	}
	return n, nil
}

func fill(raw json.RawMessage, t Type) (*tensor.Tensor, error) {
	var src *tensor.Tensor
	var n int64
	var x float64
	var b bool
	var err error
	if null(raw) {
		return tensor.New(t.DType, nil)
	}
	switch text := strings.TrimSpace(string(raw)); {
	case json.Unmarshal(raw, &n) == nil:
		src, err = tensor.Of(nil, []int64{n})
	case json.Unmarshal(raw, &x) == nil:
		src, err = tensor.Of(nil, []float64{x})
	case json.Unmarshal(raw, &b) == nil:
		src, err = tensor.Of(nil, []bool{b})
	case text == `"NaN"`, text == `"Infinity"`, text == `"-Infinity"`:
		x, _ = strconv.ParseFloat(strings.Trim(text, `"`), 64)
		src, err = tensor.Of(nil, []float64{x})
	default:
		return nil, unsupported("a fill value of %.100s", text)
	}
	if err != nil {
		return nil, err
	}
	if t.Raw && (n != 0 || x != 0 || b) {
		return nil, unsupported("a fill value of %.100s of type %s", raw, t.Name)
	}

	out, err := tensor.New(t.DType, nil)
	if err == nil {
		err = tensor.Convert(out.Lossy(), src, tensor.CastAny)
	}
	if err != nil {
		return nil, unsupported("a fill value of %.100s: %w", raw, err)
	}
	return out, nil
}

// TypeOf returns the type of that name in zarr 3, which is NumPy's name too.
func TypeOf(name string) (Type, bool) {
	t, ok := types[name]
	t.Name = name
	return t, ok
}
