package value

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/tensor"
)

func decodeComplex(v any) (any, error) {
	parts, err := decodeList(v, 0)
	if err != nil {
		return nil, err
	}
	if len(parts) != 2 {
		return nil, fmt.Errorf("%w: %s of %d parts", ErrEncoding, keyComplex, len(parts))
	}
	re, err := as[float64](parts[0], "a real part")
	if err != nil {
		return nil, err
	}
	im, err := as[float64](parts[1], "an imaginary part")
	if err != nil {
		return nil, err
	}
	return complex(re, im), nil
}

func decodeTensor(v any) (any, error) {
	m, err := as[map[string]any](v, keyTensor)
	if err != nil {
		return nil, err
	}
	if len(m) != 3 {
		return nil, fmt.Errorf("%w: %s has %d fields, not dtype, shape and data", ErrEncoding, keyTensor, len(m))
	}
	name, err := as[string](m["dtype"], "the dtype of a tensor")
	if err != nil {
		return nil, err
	}
	d, err := tensor.ParseDType(name)
	if err != nil || d.String() != name {
		return nil, fmt.Errorf("%w: %s of dtype %.40q", ErrEncoding, keyTensor, name)
	}
	shape, err := decodeShape(m["shape"])
	if err != nil {
		return nil, err
	}
	data, err := decodeBase64(m["data"])
	if err != nil {
		return nil, err
	}
	t, err := tensor.FromBytes(d, shape, data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrEncoding, keyTensor, err)
	}
	return t, nil
}

func decodeShape(v any) ([]int64, error) {
	list, err := decodeList(v, 0)
	if err != nil {
		return nil, err
	}
	shape := make([]int64, len(list))
	for i, n := range list {
		if shape[i], err = as[int64](n, "a dimension"); err != nil {
			return nil, err
		}
	}
	return shape, nil
}

func decodeObject(v any, depth int) (any, error) {
	m, err := as[map[string]any](v, keyObject)
	if err != nil {
		return nil, err
	}
	o := new(Object)
	for _, k := range []string{fieldModule, fieldName} {
		if m[k] == nil {
			return nil, fmt.Errorf("%w: %s has no %s", ErrEncoding, keyObject, k)
		}
	}
	for k, f := range m {
		if err := o.decodeField(k, f, depth); err != nil {
			return nil, fmt.Errorf("%s of an object: %w", k, err)
		}
	}
	return o, nil
}

func (o *Object) decodeField(k string, v any, depth int) (err error) {
	switch k {
	case fieldModule:
		o.Module, err = decodeName(v)
	case fieldName:
		o.Name, err = decodeName(v)
	case fieldCall:
		o.Call, err = as[bool](v, k)
	case fieldNew:
		o.New, err = as[bool](v, k)
	case fieldArgs:
		o.Args, err = filled(decodeList(v, depth))
	case fieldKwargs:
		o.Kwargs, err = decodeKwargs(v, depth)
	case fieldState:
		o.State, err = plain(v, depth+1)
	case fieldItems:
		o.Items, err = filled(decodeList(v, depth))
	case fieldPairs:
		o.Pairs, err = filled(decodePairs(v, depth))
	default:
		err = fmt.Errorf("%w: no such field", ErrEncoding)
	}
	return err
}

// filled returns nil instead of an empty list: an object without arguments has
// one form.
func filled[E any](list []E, err error) ([]E, error) {
	if len(list) == 0 {
		return nil, err
	}
	return list, err
}

// decodeName returns a string, which may be written as any string may.
func decodeName(v any) (string, error) {
	s, err := plain(v, maxDepth)
	if err != nil {
		return "", err
	}
	return as[string](s, "a name")
}

func decodeKwargs(v any, depth int) (map[string]any, error) {
	m, err := as[map[string]any](v, fieldKwargs)
	if err != nil {
		return nil, err
	}
	p, err := object(m, depth)
	if err != nil {
		return nil, err
	}
	kwargs, err := as[map[string]any](p, fieldKwargs)
	if len(kwargs) == 0 {
		return nil, err
	}
	return kwargs, err
}
