package tensor

import (
	"errors"
	"fmt"
	"strings"
)

// ErrDType reports a data type that is unknown or does not fit the operation.
var ErrDType = errors.New("unsupported dtype")

// DType is the type of a tensor's elements. The numbers are part of cairn's
// file format: they never change and are never used again for another type.
type DType uint8

// The element types, all little-endian.
const (
	Invalid        DType = 0
	Float64        DType = 1
	Float32        DType = 2
	Float16        DType = 3
	BFloat16       DType = 4
	Float8E4M3FN   DType = 5
	Float8E4M3FNUZ DType = 6
	Float8E5M2     DType = 7
	Float8E5M2FNUZ DType = 8
	Float8E8M0FNU  DType = 9
	Int64          DType = 10
	Int32          DType = 11
	Int16          DType = 12
	Int8           DType = 13
	Uint64         DType = 14
	Uint32         DType = 15
	Uint16         DType = 16
	Uint8          DType = 17
	Bool           DType = 18
	Complex64      DType = 19
	Complex128     DType = 20
)

var dtypes = [...]struct {
	name string
	size uint8
}{
	Invalid:        {"invalid", 0},
	Float64:        {"float64", 8},
	Float32:        {"float32", 4},
	Float16:        {"float16", 2},
	BFloat16:       {"bfloat16", 2},
	Float8E4M3FN:   {"float8_e4m3fn", 1},
	Float8E4M3FNUZ: {"float8_e4m3fnuz", 1},
	Float8E5M2:     {"float8_e5m2", 1},
	Float8E5M2FNUZ: {"float8_e5m2fnuz", 1},
	Float8E8M0FNU:  {"float8_e8m0fnu", 1},
	Int64:          {"int64", 8},
	Int32:          {"int32", 4},
	Int16:          {"int16", 2},
	Int8:           {"int8", 1},
	Uint64:         {"uint64", 8},
	Uint32:         {"uint32", 4},
	Uint16:         {"uint16", 2},
	Uint8:          {"uint8", 1},
	Bool:           {"bool", 1},
	Complex64:      {"complex64", 8},
	Complex128:     {"complex128", 16},
}

// DTypes returns every valid element type, in the order of their numbers.
func DTypes() []DType {
	out := make([]DType, 0, len(dtypes)-1)
	for d := range dtypes[1:] {
		out = append(out, DType(d+1))
	}
	return out
}

// Valid reports whether d is one of the listed types.
func (d DType) Valid() bool { return d > Invalid && int(d) < len(dtypes) }

// Size returns the bytes of one element, zero for an invalid type.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return int(dtypes[d].size)
}

// String returns PyTorch's name of d without the module, such as "bfloat16".
func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// ParseDType returns the type called s: a name as [DType.String] prints it, with
// or without the prefix "torch.", in any case ("Float32" is MindSpore's way).
func ParseDType(s string) (DType, error) {
	name := strings.ToLower(strings.TrimPrefix(s, "torch."))
	for d, t := range dtypes[1:] {
		if t.name == name {
			return DType(d + 1), nil
		}
	}
	return Invalid, fmt.Errorf("%w: %q", ErrDType, s)
}
