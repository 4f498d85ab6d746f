package pickle

import (
	"fmt"
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
	for _, k := range scalars {
		if k.code != dtype[1:] {
			continue
		}
		if v, ok := decodeScalar(k.dtype, data); ok {
			return &value.Object{Module: "numpy", Name: k.name, Call: true, Args: value.Tuple{v}}
		}
	}
	return nil
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

// scalars are the scalars that have a normal form: the code of their dtype, the
// class of numpy, and the element type. All are little-endian.
var scalars = []struct {
	code, name string
	dtype      tensor.DType
}{
	{"b1", "bool", tensor.Bool},
	{"i1", "int8", tensor.Int8}, {"i2", "int16", tensor.Int16}, {"i4", "int32", tensor.Int32}, {"i8", "int64", tensor.Int64},
	{"u1", "uint8", tensor.Uint8}, {"u2", "uint16", tensor.Uint16}, {"u4", "uint32", tensor.Uint32}, {"u8", "uint64", tensor.Uint64},
	{"f2", "float16", tensor.Float16}, {"f4", "float32", tensor.Float32}, {"f8", "float64", tensor.Float64},
	{"c8", "complex64", tensor.Complex64}, {"c16", "complex128", tensor.Complex128},
}

// decodeScalar returns the number of type d in data: a bool, int64, uint64 (beyond
// int64), float64 or complex128.
func decodeScalar(d tensor.DType, data []byte) (any, bool) {
	if len(data) != d.Size() || d == tensor.Bool && data[0] > 1 {
		return nil, false
	}
	t, _ := tensor.New(d, nil) // in aligned memory
	mem, _ := t.Bytes()
	copy(mem, data)
	switch {
	case d == tensor.Bool:
		return data[0] != 0, true
	case d.IsFloat():
		return number[float64](t), true
	case d.IsComplex():
		return number[complex128](t), true
	}
	if n := number[uint64](t); d == tensor.Uint64 && n > math.MaxInt64 {
		return n, true
	}
	return number[int64](t), true
}

// number returns the only element of t, cast to E.
func number[E tensor.Element](t *tensor.Tensor) E {
	t, _ = tensor.Cast(t, tensor.DTypeOf[E]())
	v, _ := tensor.Values[E](t)
	return v[0]
}

// encodeScalar is the inverse of decodeScalar. It returns false if v is not such a
// number, or d cannot hold it exactly.
func encodeScalar(d tensor.DType, v any) ([]byte, bool) {
	var t *tensor.Tensor
	switch v := v.(type) {
	case bool:
		t, _ = tensor.Of(nil, []bool{v})
	case int64:
		t, _ = tensor.Of(nil, []int64{v})
	case uint64:
		if v <= math.MaxInt64 {
			return encodeScalar(d, int64(v))
		}
		t, _ = tensor.Of(nil, []uint64{v})
	case float64:
		t, _ = tensor.Of(nil, []float64{v})
	case complex128:
		t, _ = tensor.Of(nil, []complex128{v})
	default:
		return nil, false
	}
	t, err := tensor.Cast(t, d)
	if err != nil {
		return nil, false
	}
	data := t.Contents()
	back, _ := decodeScalar(d, data)
	return data, fmt.Sprintf("%T %v", back, back) == fmt.Sprintf("%T %v", v, v) // equal, or both NaN
}

// multiarray is the module from which every release of numpy loads arrays and
// scalars.
const multiarray = "numpy.core.multiarray"

// packNumpy is the inverse of numpy.
func packNumpy(o *value.Object) *value.Object {
	switch {
	case o.Name == "dtype" && bare(o, 1):
		s, ok := o.Args[0].(string)
		if _, plain := itemSize(s); !ok || !plain {
			badForm(o)
		}
		return packDType(s)
	case o.Name == "ndarray":
		return packArray(o)
	}
	for _, k := range scalars {
		if k.name != o.Name {
			continue
		}
		if !bare(o, 1) {
			badForm(o)
		}
		b, ok := encodeScalar(k.dtype, o.Args[0])
		if !ok {
			badForm(o)
		}
		order := "<"
		if k.dtype.Size() == 1 {
			order = "|"
		}
		return &value.Object{Module: multiarray, Name: "scalar", Call: true,
			Args: value.Tuple{packedDType{packDType(order + k.code)}, b}}
	}
	return o
}

// packedDType is a dtype that is already in Python's form.
type packedDType struct{ *value.Object }

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

func packArray(o *value.Object) *value.Object {
	text, ok := o.Kwargs["dtype"].(string)
	data, ok2 := o.Kwargs["data"].([]byte)
	dims, ok3 := dimensions(o.Kwargs["shape"])
	ord, ok4 := o.Kwargs["order"].(string)
	size, ok5 := itemSize(text)
	if !ok || !ok2 || !ok3 || !ok4 || !ok5 || len(o.Kwargs) != 4 || len(o.Args) != 0 || ord != "C" && ord != "F" {
		badForm(o)
	}
	if n, err := tensor.NumElements(append(dims, size)); err != nil || n != int64(len(data)) {
		badForm(o)
	}
	return &value.Object{Module: multiarray, Name: "_reconstruct", Call: true,
		Args:  value.Tuple{&value.Object{Module: "numpy", Name: "ndarray"}, value.Tuple{int64(0)}, []byte("b")},
		State: value.Tuple{int64(1), o.Kwargs["shape"], packedDType{packDType(text)}, ord == "F", data}}
}
