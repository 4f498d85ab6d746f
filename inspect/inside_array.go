package inspect

import (
	"errors"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// errArray reports an array whose elements are unknown.
var errArray = errors.New("an array with elements of a type that is not known")

// arrayOf returns the elements of an array of numbers, of NumPy or of Python's module
// array, as a tensor. The tensor is nil if o is something else.
func arrayOf(o *value.Object) (*tensor.Tensor, error) {
	switch {
	case !o.Call:
		return nil, nil
	case o.Module == "numpy" && o.Name == "ndarray":
		return numpyElements(o)
	case o.Module == "array" && o.Name == "array":
		return pythonElements(o)
	case o.Module == "array" && o.Name == "_array_reconstructor",
		// These have no normal form: records, objects, subclasses and masked arrays.
		strings.HasPrefix(o.Module, "numpy.") && (o.Name == "_reconstruct" || o.Name == "_frombuffer" || o.Name == "_mareconstruct"):
		return nil, errArray
	}
	return nil, nil
}

func numpyElements(o *value.Object) (*tensor.Tensor, error) {
	a, ok := npArrayOf(o)
	if !ok {
		return nil, errArray
	}
	if a.d.kind == 'U' || a.d.kind == 'S' { // text
		return nil, nil
	}
	d, err := tensor.ParseDType(npKinds[a.d.kind][0] + a.d.bits())
	if err != nil {
		return nil, err
	}
	data := a.data
	if a.d.big {
		data = swapped(a.d, data)
	}
	return tensor.FromStrided(d, a.shape, a.strides, 0, data)
}

// pythonElements returns the elements of an array.array, which is made of the code
// of its type and a list.
func pythonElements(o *value.Object) (*tensor.Tensor, error) {
	if len(o.Args) < 2 {
		return nil, nil // empty
	}
	list, ok := o.Args[1].([]any)
	if _, text := o.Args[1].(string); text {
		return nil, nil
	}
	floats, ints := make([]float64, 0, len(list)), make([]int64, 0, len(list))
	for _, e := range list {
		switch e := e.(type) {
		case float64:
			floats = append(floats, e)
		case int64:
			ints = append(ints, e)
		}
	}
	shape := []int64{int64(len(list))}
	switch {
	case !ok:
	case len(floats) == len(list):
		return tensor.Of(shape, floats)
	case len(ints) == len(list):
		return tensor.Of(shape, ints)
	}
	return nil, errArray
}
