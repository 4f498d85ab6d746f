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

// aliases are the usual short names of element types.
var aliases = map[DType][]string{
	Float64:        {"fp64", "f64", "double"},
	Float32:        {"fp32", "f32", "float"},
	Float16:        {"fp16", "f16", "half"},
	BFloat16:       {"bf16"},
	Float8E4M3FN:   {"float8_e4m3", "fp8_e4m3", "fp8_e4m3fn", "f8_e4m3", "f8_e4m3fn"},
	Float8E4M3FNUZ: {"fp8_e4m3fnuz", "f8_e4m3fnuz"},
	Float8E5M2:     {"fp8_e5m2", "f8_e5m2"},
	Float8E5M2FNUZ: {"fp8_e5m2fnuz", "f8_e5m2fnuz"},
	Float8E8M0FNU:  {"float8_e8m0", "fp8_e8m0", "fp8_e8m0fnu", "f8_e8m0", "f8_e8m0fnu"},
	Int64:          {"i64", "long"},
	Int32:          {"i32", "int"},
	Int16:          {"i16", "short"},
	Int8:           {"i8"},
	Uint64:         {"u64"},
	Uint32:         {"u32"},
	Uint16:         {"u16"},
	Uint8:          {"u8"},
	Complex64:      {"c64", "cfloat"},
	Complex128:     {"c128", "cdouble"},
}

// Aliases returns the short names by which people call d, the usual one first.
func (d DType) Aliases() []string { return append([]string(nil), aliases[d]...) }

// LookupDType is ParseDType for what people type: it takes short names such as
// "bf16" too, and its error lists the names that there are. What files say is for
// ParseDType.
func LookupDType(s string) (DType, error) {
	if d, err := ParseDType(s); err == nil {
		return d, nil
	}
	name := strings.ToLower(strings.TrimPrefix(s, "torch."))
	for d, list := range aliases {
		for _, a := range list {
			if a == name {
				return d, nil
			}
		}
	}
	var known []string
	for _, d := range DTypes() {
		known = append(known, d.String())
	}
	return Invalid, fmt.Errorf("%w %q: want one of %s", ErrDType, s, strings.Join(known, ", "))
}

// IsFloat reports whether d is a floating-point type, of any width. The complex
// types are none.
func (d DType) IsFloat() bool { return d >= Float64 && d <= Float8E8M0FNU }

// IsInteger reports whether d is an integer type, with a sign or without. Bool is
// none.
func (d DType) IsInteger() bool { return d >= Int64 && d <= Uint8 }

// IsComplex reports whether d is a complex type, whose elements are two floats.
func (d DType) IsComplex() bool { return d == Complex64 || d == Complex128 }

// trait is something that some dtypes can tell and others cannot.
type trait uint8

const (
	zero trait = 1 << iota
	negative
	minusZero
	nan
	infinity
	imaginary
)

const (
	signed = zero | negative
	finite = signed | minusZero | nan // a float without infinities
	ieee   = finite | infinity
)

// ranges describes the numbers of every dtype: m·2^e for any m of so many bits
// and any e from low on, as long as the product is below 2^high, and what else
// there is besides. An integer's lowest number, a power of two by itself, is
// below what any larger type holds.
var ranges = [...]struct {
	bits, low, high int
	traits          trait
}{
	Float64:        {53, -1074, 1024, ieee},
	Float32:        {24, -149, 128, ieee},
	Float16:        {11, -24, 16, ieee},
	BFloat16:       {8, -133, 128, ieee},
	Float8E4M3FN:   {4, -9, 9, finite},
	Float8E4M3FNUZ: {4, -10, 8, finite &^ minusZero},
	Float8E5M2:     {3, -16, 16, ieee},
	Float8E5M2FNUZ: {3, -17, 16, finite &^ minusZero},
	Float8E8M0FNU:  {1, -127, 128, nan},
	Int64:          {63, 0, 63, signed},
	Int32:          {31, 0, 31, signed},
	Int16:          {15, 0, 15, signed},
	Int8:           {7, 0, 7, signed},
	Uint64:         {64, 0, 64, zero},
	Uint32:         {32, 0, 32, zero},
	Uint16:         {16, 0, 16, zero},
	Uint8:          {8, 0, 8, zero},
	Bool:           {1, 0, 1, zero},
	Complex64:      {24, -149, 128, ieee | imaginary},
	Complex128:     {53, -1074, 1024, ieee | imaginary},
}

// CanWiden reports whether every value of from is also one of to: finite
// numbers to the last bit, infinities, NaN (not the bits inside of it) and the
// sign of zero. A bool counts as the number zero or one, so it widens to every
// type but float8_e8m0fnu, which has no zero; nothing else widens to a bool. Every
// valid dtype widens to itself.
func CanWiden(from, to DType) bool {
	if !from.Valid() || !to.Valid() {
		return false
	}
	f, t := ranges[from], ranges[to]
	return f.bits <= t.bits && f.low >= t.low && f.high <= t.high && f.traits&^t.traits == 0
}

// Aligned reports whether Go may look at mem as at elements of type d, those of
// complex types as two floats. It is false for an invalid type.
func (d DType) Aligned(mem []byte) bool {
	size := d.Size()
	if d.IsComplex() {
		size /= 2
	}
	return size > 0 && alignedTo(mem, uintptr(size))
}

// isSmall reports whether d is a float that Go has no type for.
func (d DType) isSmall() bool { return d >= Float16 && d <= Float8E8M0FNU }
