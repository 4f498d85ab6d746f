package pickle

import (
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// multiarray is the module that every release of numpy loads arrays and scalars
// from.
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

// packedDType is a dtype that is in the form for Python already.
type packedDType struct{ *value.Object }

// order returns the byte order of numpy's dtypes of that code.
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
