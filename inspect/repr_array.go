package inspect

import (
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// npArray is an array as numpy stores it. Strides count elements.
type npArray struct {
	d              npType
	shape, strides []int64
	data           []byte
}

// npArrayOf returns the array that o is, if its elements can be shown here.
func npArrayOf(o *value.Object) (*npArray, bool) {
	data, isBytes := o.Kwargs["data"].([]byte)
	d, isType := parseNumpyType(o.Kwargs["dtype"])
	dims, isShape := o.Kwargs["shape"].(value.Tuple)
	order, _ := o.Kwargs["order"].(string)
	if !isBytes || !isType || !isShape || len(o.Kwargs) != 4 || len(o.Args) > 0 || hasContents(o) {
		return nil, false
	}
	a := &npArray{d: d, data: data}
	for _, n := range dims[:min(len(dims), tensor.MaxDims+1)] {
		size, ok := n.(int64)
		if !ok {
			return nil, false
		}
		a.shape = append(a.shape, size)
	}
	n, err := tensor.NumElements(a.shape)
	if err != nil || n > int64(len(data)) || n*int64(d.size) != int64(len(data)) {
		return nil, false
	}
	a.strides = stridesOf(a.shape, order == "F")
	return a, true
}

// stridesOf returns the distances between neighbours. Fortran has the first
// dimension fastest.
func stridesOf(shape []int64, fortran bool) []int64 {
	out, n := make([]int64, len(shape)), int64(1)
	for i := range out {
		d := i
		if !fortran {
			d = len(out) - 1 - i
		}
		out[d] = n
		n *= shape[d]
	}
	return out
}

func (r *reprer) numpyArray(o *value.Object) bool {
	a, ok := npArrayOf(o)
	if !ok {
		return false
	}
	r.text("array(")
	if len(a.data) == 0 {
		r.text("[]")
		if len(a.shape) != 1 {
			r.text(", shape=")
			r.tuple(o.Kwargs["shape"].(value.Tuple))
		}
	} else {
		r.dimension(a, 0, 0)
	}
	if len(a.data) == 0 || !slices.Contains(usualTypes, a.d.code()) {
		r.text(", dtype=" + a.d.code())
	}
	r.text(")")
	return true
}

// usualTypes are those that numpy does not name, as the elements tell.
var usualTypes = []string{"int64", "float64", "bool", "complex128"}

// dimension adds the part of an array that begins at the element at, from
// dimension d on.
func (r *reprer) dimension(a *npArray, d int, at int64) {
	if d < len(a.shape) {
		r.text("[")
		r.each(int(a.shape[d]), func(i int) { r.dimension(a, d+1, at+int64(i)*a.strides[d]) })
		r.text("]")
		return
	}
	float := appendPoint
	if d == 0 {
		float = appendFloat
	}
	size := int64(a.d.size)
	r.element(a.d, a.data[at*size:][:size], float)
}

// appendPoint is appendFloat as numpy writes it inside of arrays: a whole number
// ends with its point.
func appendPoint(b []byte, f float64, bits int) []byte {
	n := len(b)
	b = appendFloat(b, f, bits)
	if s := b[n:]; len(s) > 2 && string(s[len(s)-2:]) == ".0" {
		return b[:len(b)-1]
	}
	return b
}
