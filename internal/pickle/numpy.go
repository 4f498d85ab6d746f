package pickle

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// numpy returns scalars, arrays and dtypes of numpy in their normal form.
func numpy(o *value.Object) any {
	switch {
	case o.Module == "numpy" && o.Name == "dtype":
		if s, ok := dtypeText(o); ok {
			return numpyDType(s)
		}
	case o.Name == "scalar" && strings.HasSuffix(o.Module, ".multiarray"):
		if n := numpyScalar(o); n != nil {
			return n
		}
	case o.Name == "_reconstruct" && strings.HasSuffix(o.Module, ".multiarray"):
		if n := numpyArray(o); n != nil {
			return n
		}
	case o.Name == "_frombuffer" && strings.HasSuffix(o.Module, ".numeric") && bare(o, 4):
		if n := newArray(o.Args[1], o.Args[2], o.Args[3], o.Args[0]); n != nil {
			return n
		}
	}
	return o
}

func numpyDType(s string) *value.Object {
	return &value.Object{Module: "numpy", Name: "dtype", Call: true, Args: value.Tuple{s}}
}

// dtypeText returns the text of a pickled dtype, or false if the dtype has fields
// or units. The byte order is in the state.
func dtypeText(o *value.Object) (string, bool) {
	if len(o.Args) == 0 || o.Kwargs != nil || o.Items != nil || o.Pairs != nil {
		return "", false
	}
	code, ok := o.Args[0].(string)
	state, ok2 := o.State.(value.Tuple)
	if !ok || !ok2 || len(state) != 8 || state[2] != nil || state[3] != nil || state[4] != nil {
		return "", false
	}
	order, ok := state[1].(string)
	if !ok || order != "<" && order != ">" && order != "|" {
		return "", false
	}
	_, ok = itemSize(order + code)
	return order + code, ok
}

// itemSize returns the bytes of an element of a plain dtype.
func itemSize(dtype string) (int64, bool) {
	if len(dtype) < 3 || len(dtype) > 9 || !strings.Contains("biufcSU", dtype[1:2]) {
		return 0, false
	}
	n, err := strconv.ParseUint(dtype[2:], 10, 31)
	if err != nil {
		return 0, false
	}
	if dtype[1] == 'U' {
		n *= 4
	}
	return int64(n), true
}

// plainDType returns the text of a dtype in normal form.
func plainDType(v any) (string, bool) {
	o, ok := v.(*value.Object)
	if !ok || o.Module != "numpy" || o.Name != "dtype" || !o.Call || !bare(o, 1) {
		return "", false
	}
	s, ok := o.Args[0].(string)
	if !ok {
		return "", false
	}
	_, ok = itemSize(s)
	return s, ok
}

func numpyScalar(o *value.Object) *value.Object {
	if !bare(o, 2) {
		return nil
	}
	dtype, ok := plainDType(o.Args[0])
	data, ok2 := rawBytes(o.Args[1])
	if !ok || !ok2 || dtype[0] == '>' {
		return nil
	}
	k, ok := scalarKinds[dtype[1:]]
	if !ok || len(data) != k.size {
		return nil
	}
	v, ok := k.decode(data)
	if !ok {
		return nil
	}
	return &value.Object{Module: "numpy", Name: k.name, Call: true, Args: value.Tuple{v}}
}

// numpyArray returns an array, which is pickled as an empty array with a state.
func numpyArray(o *value.Object) *value.Object {
	state, ok := o.State.(value.Tuple)
	if !ok || len(state) != 5 || o.Items != nil || o.Pairs != nil || len(o.Args) == 0 || !isName(o.Args[0], "numpy", "ndarray") {
		return nil
	}
	order := "C"
	if fortran, _ := state[3].(bool); fortran {
		order = "F"
	}
	return newArray(state[2], state[1], order, state[4])
}

// newArray returns the normal form of an array if its parts are consistent.
func newArray(dtype, shape, order, data any) *value.Object {
	text, ok := plainDType(dtype)
	dims, ok2 := dimensions(shape)
	b, ok3 := rawBytes(data)
	ord, ok4 := order.(string)
	if !ok || !ok2 || !ok3 || !ok4 || ord != "C" && ord != "F" {
		return nil
	}
	size, _ := itemSize(text)
	if n, err := tensor.NumElements(append(dims, size)); err != nil || n != int64(len(b)) {
		return nil
	}
	return &value.Object{Module: "numpy", Name: "ndarray", Call: true,
		Kwargs: map[string]any{"dtype": text, "shape": shape, "order": ord, "data": b}}
}

// dimensions returns the integers of a tuple that is a shape.
func dimensions(v any) ([]int64, bool) {
	t, ok := v.(value.Tuple)
	if !ok || len(t) > tensor.MaxDims { // many arrays may share a tuple
		return nil, false
	}
	out := make([]int64, 0, len(t)+1)
	for _, e := range t {
		n, ok := e.(int64)
		if !ok {
			return nil, false
		}
		out = append(out, n)
	}
	return out, true
}

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

// floatBytes returns f in size bytes, or false if it does not fit exactly.
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

// multiarray is the module from which every release of numpy loads arrays and
// scalars.
const multiarray = "numpy.core.multiarray"

// packNumpy is the inverse of numpy.
func packNumpy(o *value.Object) (*value.Object, error) {
	switch {
	case o.Name == "dtype" && bare(o, 1):
		s, ok := o.Args[0].(string)
		if _, plain := itemSize(s); !ok || !plain {
			return nil, badForm(o)
		}
		return packDType(s), nil
	case o.Name == "ndarray":
		return packArray(o)
	}
	code, ok := scalarCodes[o.Name]
	if !ok {
		return o, nil
	}
	if !bare(o, 1) {
		return nil, badForm(o)
	}
	b, ok := scalarKinds[code].encode(o.Args[0])
	if !ok {
		return nil, badForm(o)
	}
	return &value.Object{Module: multiarray, Name: "scalar", Call: true,
		Args: value.Tuple{packedDType{packDType(order(code) + code)}, b}}, nil
}

// packedDType is a dtype that is already in Python's form.
type packedDType struct{ *value.Object }

// order returns the byte order in numpy's dtype of that code.
func order(code string) string {
	if code[1:] == "1" {
		return "|"
	}
	return "<"
}

func packDType(s string) *value.Object {
	size, flags := int64(-1), int64(0)
	align := int64(-1)
	if n, _ := itemSize(s); s[1] == 'U' || s[1] == 'S' {
		size, align = n, 1
		if s[1] == 'U' {
			align, flags = 4, 8
		}
	}
	return &value.Object{Module: "numpy", Name: "dtype", Call: true,
		Args:  value.Tuple{s[1:], false, true},
		State: value.Tuple{int64(3), s[:1], nil, nil, nil, size, align, flags}}
}

func packArray(o *value.Object) (*value.Object, error) {
	text, ok := o.Kwargs["dtype"].(string)
	data, ok2 := o.Kwargs["data"].([]byte)
	dims, ok3 := dimensions(o.Kwargs["shape"])
	ord, ok4 := o.Kwargs["order"].(string)
	size, ok5 := itemSize(text)
	if !ok || !ok2 || !ok3 || !ok4 || !ok5 || len(o.Kwargs) != 4 || len(o.Args) != 0 || ord != "C" && ord != "F" {
		return nil, badForm(o)
	}
	if n, err := tensor.NumElements(append(dims, size)); err != nil || n != int64(len(data)) {
		return nil, badForm(o)
	}
	return &value.Object{Module: multiarray, Name: "_reconstruct", Call: true,
		Args:  value.Tuple{&value.Object{Module: "numpy", Name: "ndarray"}, value.Tuple{int64(0)}, []byte("b")},
		State: value.Tuple{int64(1), o.Kwargs["shape"], packedDType{packDType(text)}, ord == "F", data}}, nil
}
