package pickle

import (
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// numpy returns plain scalars, arrays and dtypes of numpy in their normal form.
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

// dtypeText returns the text of a dtype that is pickled as its class and size,
// with its byte order in the state; false for one with fields or units.
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

// plainDType returns the text of a dtype in its normal form.
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

// numpyArray returns an array that is pickled as an empty one and its state.
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

// newArray returns the normal form of an array if its parts fit each other.
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
	if !ok || len(t) > tensor.MaxDims { // many arrays may share it
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
