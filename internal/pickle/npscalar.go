package pickle

import (
	"encoding/binary"
	"math"
)

// scalarKind is a class of numpy's scalars.
type scalarKind struct {
	name   string
	size   int
	decode func([]byte) (any, bool)
	encode func(any) ([]byte, bool)
}

// scalarKinds are the scalars that have a normal form, by the code of their
// dtype. All are little-endian.
var scalarKinds = map[string]scalarKind{
	"b1":  {"bool", 1, decodeBool, encodeBool},
	"i1":  {"int8", 1, decodeInt, encodeInt(1)},
	"i2":  {"int16", 2, decodeInt, encodeInt(2)},
	"i4":  {"int32", 4, decodeInt, encodeInt(4)},
	"i8":  {"int64", 8, decodeInt, encodeInt(8)},
	"u1":  {"uint8", 1, decodeUint, encodeUint(1)},
	"u2":  {"uint16", 2, decodeUint, encodeUint(2)},
	"u4":  {"uint32", 4, decodeUint, encodeUint(4)},
	"u8":  {"uint64", 8, decodeUint, encodeUint(8)},
	"f2":  {"float16", 2, decodeFloat, encodeFloat(2)},
	"f4":  {"float32", 4, decodeFloat, encodeFloat(4)},
	"f8":  {"float64", 8, decodeFloat, encodeFloat(8)},
	"c8":  {"complex64", 8, decodeComplex, encodeComplex(8)},
	"c16": {"complex128", 16, decodeComplex, encodeComplex(16)},
}

// scalarCodes are the codes of the dtypes by the names of the classes.
var scalarCodes = func() map[string]string {
	out := map[string]string{}
	for code, k := range scalarKinds {
		out[k.name] = code
	}
	return out
}()

func uintOf(b []byte) uint64 {
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	return v
}

func decodeBool(b []byte) (any, bool) { return b[0] != 0, b[0] <= 1 }

func decodeInt(b []byte) (any, bool) {
	shift := 64 - 8*len(b)
	return int64(uintOf(b)<<shift) >> shift, true
}

func decodeUint(b []byte) (any, bool) {
	v := uintOf(b)
	if v > math.MaxInt64 {
		return v, true
	}
	return int64(v), true
}

func decodeFloat(b []byte) (any, bool) { return floatOf(b), true }

func decodeComplex(b []byte) (any, bool) {
	h := len(b) / 2
	return complex(floatOf(b[:h]), floatOf(b[h:])), true
}

func floatOf(b []byte) float64 {
	switch len(b) {
	case 2:
		return half(binary.LittleEndian.Uint16(b))
	case 4:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

// half returns the number with the bits of a float16.
func half(h uint16) float64 {
	sign := 1.0
	if h>>15 != 0 {
		sign = -1
	}
	exp, frac := int(h>>10&0x1f), float64(h&0x3ff)
	switch exp {
	case 0:
		return sign * math.Ldexp(frac, -24)
	case 0x1f:
		if frac != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

func encodeBool(v any) ([]byte, bool) {
	b, ok := v.(bool)
	if b {
		return []byte{1}, ok
	}
	return []byte{0}, ok
}

func encodeInt(size int) func(any) ([]byte, bool) {
	return func(v any) ([]byte, bool) {
		n, ok := v.(int64)
		shift := 64 - 8*size
		return le(uint64(n), size), ok && n<<shift>>shift == n
	}
}

func encodeUint(size int) func(any) ([]byte, bool) {
	return func(v any) ([]byte, bool) {
		n, ok := v.(uint64)
		if i, isInt := v.(int64); isInt && i >= 0 {
			n, ok = uint64(i), true
		}
		shift := 64 - 8*size
		return le(n, size), ok && n<<shift>>shift == n
	}
}

func le(v uint64, size int) []byte { return binary.LittleEndian.AppendUint64(nil, v)[:size] }

func encodeFloat(size int) func(any) ([]byte, bool) {
	return func(v any) ([]byte, bool) {
		f, ok := v.(float64)
		if !ok {
			return nil, false
		}
		return floatBytes(f, size)
	}
}

func encodeComplex(size int) func(any) ([]byte, bool) {
	return func(v any) ([]byte, bool) {
		c, ok := v.(complex128)
		if !ok {
			return nil, false
		}
		re, ok := floatBytes(real(c), size/2)
		im, ok2 := floatBytes(imag(c), size/2)
		return append(re, im...), ok && ok2
	}
}

// floatBytes returns f in so many bytes, and false if they do not hold it.
func floatBytes(f float64, size int) ([]byte, bool) {
	switch size {
	case 2:
		h, ok := toHalf(f)
		return le(uint64(h), 2), ok
	case 4:
		s := float32(f)
		return le(uint64(math.Float32bits(s)), 4), float64(s) == f || math.IsNaN(f)
	}
	return le(math.Float64bits(f), 8), true
}

// toHalf returns the bits of the float16 that equals f, if there is one.
func toHalf(f float64) (uint16, bool) {
	var sign uint16
	if math.Signbit(f) {
		sign, f = 0x8000, -f
	}
	switch {
	case math.IsNaN(f):
		return 0x7e00, true
	case math.IsInf(f, 0):
		return sign | 0x7c00, true
	}
	_, exp := math.Frexp(f) // f < 2^exp
	unit := max(exp-11, -24)
	m := math.Ldexp(f, -unit)
	if m != math.Trunc(m) || m >= 2048 || exp > 16 {
		return 0, false
	}
	if m < 1024 {
		return sign | uint16(m), true
	}
	return sign | uint16(unit+25)<<10 | uint16(m) - 1024, true
}
