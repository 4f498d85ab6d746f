package tensor

import (
	"errors"
	"fmt"
	"slices"
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

// dtypes describes the element types. The numbers of a type are m·2^e for every m of
// up to bits bits and every e of at least low, if the product is below 2^high, and
// the numbers that traits list. The lowest number of an integer type is missing here:
// it is a power of two, and every larger type holds it too.
var dtypes = [...]struct {
	name            string
	size            uint8
	bits, low, high int
	traits          trait
	aliases         []string // short names, the usual one first
}{
	Float64:        {"float64", 8, 53, -1074, 1024, ieee, []string{"fp64", "f64", "double"}},
	Float32:        {"float32", 4, 24, -149, 128, ieee, []string{"fp32", "f32", "float"}},
	Float16:        {"float16", 2, 11, -24, 16, ieee, []string{"fp16", "f16", "half"}},
	BFloat16:       {"bfloat16", 2, 8, -133, 128, ieee, []string{"bf16"}},
	Float8E4M3FN:   {"float8_e4m3fn", 1, 4, -9, 9, finite, []string{"float8_e4m3", "fp8_e4m3", "fp8_e4m3fn", "f8_e4m3", "f8_e4m3fn"}},
	Float8E4M3FNUZ: {"float8_e4m3fnuz", 1, 4, -10, 8, finite &^ minusZero, []string{"fp8_e4m3fnuz", "f8_e4m3fnuz"}},
	Float8E5M2:     {"float8_e5m2", 1, 3, -16, 16, ieee, []string{"fp8_e5m2", "f8_e5m2"}},
	Float8E5M2FNUZ: {"float8_e5m2fnuz", 1, 3, -17, 16, finite &^ minusZero, []string{"fp8_e5m2fnuz", "f8_e5m2fnuz"}},
	Float8E8M0FNU:  {"float8_e8m0fnu", 1, 1, -127, 128, nan, []string{"float8_e8m0", "fp8_e8m0", "fp8_e8m0fnu", "f8_e8m0", "f8_e8m0fnu"}},
	Int64:          {"int64", 8, 63, 0, 63, signed, []string{"i64", "long"}},
	Int32:          {"int32", 4, 31, 0, 31, signed, []string{"i32", "int"}},
	Int16:          {"int16", 2, 15, 0, 15, signed, []string{"i16", "short"}},
	Int8:           {"int8", 1, 7, 0, 7, signed, []string{"i8"}},
	Uint64:         {"uint64", 8, 64, 0, 64, zero, []string{"u64"}},
	Uint32:         {"uint32", 4, 32, 0, 32, zero, []string{"u32"}},
	Uint16:         {"uint16", 2, 16, 0, 16, zero, []string{"u16"}},
	Uint8:          {"uint8", 1, 8, 0, 8, zero, []string{"u8"}},
	Bool:           {"bool", 1, 1, 0, 1, zero, nil},
	Complex64:      {"complex64", 8, 24, -149, 128, ieee | imaginary, []string{"c64", "cfloat"}},
	Complex128:     {"complex128", 16, 53, -1074, 1024, ieee | imaginary, []string{"c128", "cdouble"}},
}

// trait is a property that some dtypes have and others lack.
type trait uint8

const (
	zero trait = 1 << iota
	negative
	minusZero
	nan
	infinity
	imaginary

	signed = zero | negative
	finite = signed | minusZero | nan // a float without infinities
	ieee   = finite | infinity
)

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

// Aliases returns the usual short names of d, the most common one first.
func (d DType) Aliases() []string {
	if !d.Valid() {
		return nil
	}
	return slices.Clone(dtypes[d].aliases)
}

// LookupDType is ParseDType for input of people: it also takes short names such as
// "bf16", and its error lists all names.
func LookupDType(s string) (DType, error) {
	if d, err := ParseDType(s); err == nil {
		return d, nil
	}

	name := strings.ToLower(strings.TrimPrefix(s, "torch."))
	var known []string
	for d, t := range dtypes[1:] {
		if slices.Contains(t.aliases, name) {
			return DType(d + 1), nil
		}
		known = append(known, t.name)
	}

	return Invalid, fmt.Errorf("%w %q: want one of %s", ErrDType, s, strings.Join(known, ", "))
}

// IsFloat reports whether d is a floating-point type of any width. Complex types
// are not.
func (d DType) IsFloat() bool { return d >= Float64 && d <= Float8E8M0FNU }

// IsInteger reports whether d is a signed or unsigned integer type. Bool is not.
func (d DType) IsInteger() bool { return d >= Int64 && d <= Uint8 }

// IsComplex reports whether d is a complex type, with elements of two floats.
func (d DType) IsComplex() bool { return d == Complex64 || d == Complex128 }

// CanWiden reports whether to holds every value of from: exact finite numbers,
// infinities, NaN (not its payload) and the sign of zero. A bool counts as the number
// zero or one, so it widens to every type except float8_e8m0fnu, which has no zero. No
// other type widens to bool. Every valid dtype widens to itself.
func CanWiden(from, to DType) bool {
	if !from.Valid() || !to.Valid() {
		return false
	}
	f, t := dtypes[from], dtypes[to]
	return f.bits <= t.bits && f.low >= t.low && f.high <= t.high && f.traits&^t.traits == 0
}

// Aligned reports whether mem is aligned for elements of type d; an element of a
// complex type counts as two floats. It is false for an invalid type.
func (d DType) Aligned(mem []byte) bool {
	size := d.Size()
	if d.IsComplex() {
		size /= 2
	}
	return size > 0 && alignedTo(mem, uintptr(size))
}

// isSmall reports whether d is a float that Go has no type for.
func (d DType) isSmall() bool { return d >= Float16 && d <= Float8E8M0FNU }
