package torchsave

import (
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// construct makes a value of a call.
type construct = func(args value.Tuple, kwargs map[string]any) (any, error)

// constructs are the calls that make plain tensors. What they do not understand
// stays what it is, a record of the call.
func constructs() map[string]construct {
	return map[string]construct{
		"torch._utils._rebuild_tensor":               orInert("torch._utils", "_rebuild_tensor", rebuildTensor),
		"torch._utils._rebuild_tensor_v2":            orInert("torch._utils", "_rebuild_tensor_v2", rebuildTensor),
		"torch._utils._rebuild_tensor_v3":            orInert("torch._utils", "_rebuild_tensor_v3", rebuildUntyped),
		"torch._utils._rebuild_parameter":            orInert("torch._utils", "_rebuild_parameter", rebuildParameter),
		"torch._utils._rebuild_parameter_with_state": orInert("torch._utils", "_rebuild_parameter_with_state", rebuildParameter),
		"torch._tensor._rebuild_from_type_v2":        orInert("torch._tensor", "_rebuild_from_type_v2", rebuildFromType),
	}
}

// orInert returns a construct that keeps a call of which build makes nothing.
func orInert(module, name string, build func(value.Tuple) (*Tensor, error)) construct {
	return func(args value.Tuple, kwargs map[string]any) (any, error) {
		if len(kwargs) == 0 {
			if t, err := build(args); t != nil || err != nil {
				return t, err
			}
		}
		return &value.Object{Module: module, Name: name, Call: true, Args: args, Kwargs: kwargs}, nil
	}
}

// rebuildTensor makes a tensor of (storage, offset, size, strides) and, in the
// second version, (requires_grad, hooks[, metadata]).
func rebuildTensor(args value.Tuple) (*Tensor, error) {
	if len(args) != 4 && len(args) != 6 && len(args) != 7 {
		return nil, nil
	}
	s, ok := args[0].(*Storage)
	if !ok || s.untyped {
		return nil, nil
	}
	t, err := view(s, s.DType, args[1:4])
	if err == nil && len(args) > 4 {
		t.RequiresGrad, _ = args[4].(bool)
	}
	return t.described(args[min(len(args), 6):], err)
}

// described returns the tensor with what the call says of it in a last argument,
// if there is one, or nothing if that says more than is known here.
func (t *Tensor) described(metadata value.Tuple, err error) (*Tensor, error) {
	if err != nil || len(metadata) > 0 && !t.setMetadata(metadata[0]) {
		return nil, err
	}
	return t, nil
}

// rebuildUntyped makes a tensor of (storage, offset, size, strides,
// requires_grad, hooks, dtype[, metadata]).
func rebuildUntyped(args value.Tuple) (*Tensor, error) {
	if len(args) != 7 && len(args) != 8 {
		return nil, nil
	}
	s, ok1 := args[0].(*Storage)
	name, ok2 := args[6].(*value.Object)
	if !ok1 || !ok2 || name.Call || name.Module != "torch" {
		return nil, nil
	}
	d, err := tensor.ParseDType(name.Name)
	if err != nil {
		return nil, nil // a type that we have no tensors of
	}
	t, err := view(s, d, args[1:4])
	if err == nil {
		t.RequiresGrad, _ = args[4].(bool)
	}
	return t.described(args[7:], err)
}

// rebuildParameter makes a parameter of (tensor, requires_grad, hooks[, state]).
func rebuildParameter(args value.Tuple) (*Tensor, error) {
	if len(args) != 3 && len(args) != 4 {
		return nil, nil
	}
	data, ok := args[0].(*Tensor)
	if !ok {
		return nil, nil
	}
	t := *data
	t.Parameter = true
	t.RequiresGrad, _ = args[1].(bool)
	return &t, nil
}

// rebuildFromType makes a tensor of (function, class, arguments, state), where
// the class is that of plain tensors. The state are attributes that somebody
// set, which are not kept.
func rebuildFromType(args value.Tuple) (*Tensor, error) {
	if len(args) != 4 {
		return nil, nil
	}
	fn, ok1 := args[0].(*value.Object)
	class, ok2 := args[1].(*value.Object)
	inner, ok3 := args[2].(value.Tuple)
	if !ok1 || !ok2 || !ok3 || fn.Call || class.Call {
		return nil, nil
	}
	switch class.QualifiedName() {
	case "torch.Tensor", "torch._tensor.Tensor":
	default:
		return nil, nil
	}
	switch fn.QualifiedName() {
	case "torch._utils._rebuild_tensor_v2":
		return rebuildTensor(inner)
	case "torch._utils._rebuild_tensor_v3":
		return rebuildUntyped(inner)
	}
	return nil, nil
}

// view makes a tensor of (offset, size, strides), if it lies inside of s.
func view(s *Storage, d tensor.DType, args value.Tuple) (*Tensor, error) {
	offset, ok1 := asInt(args[0])
	shape, ok2 := asInts(args[1])
	strides, ok3 := asInts(args[2])
	if !ok1 || !ok2 || !ok3 {
		return nil, fmt.Errorf("%w: of storage %q: offset, size and strides are not integers, or too many", ErrView, s.Key)
	}
	t := &Tensor{DType: d, Shape: shape, Strides: strides, StorageKey: s.Key, End: s.End, Sum: s.Sum}
	if err := t.checkInside(offset, s.numBytes()/int64(d.Size())); err != nil {
		return nil, fmt.Errorf("%w: of storage %q: %w", ErrView, s.Key, err)
	}
	t.Offset = s.Offset + offset*int64(d.Size())
	return t, nil
}

// checkInside returns an error unless the tensor, from its first element at
// offset on, lies within room elements.
func (t *Tensor) checkInside(offset, room int64) error {
	n, err := tensor.NumElements(t.Shape)
	if err != nil {
		return err
	}
	if _, err := tensor.NumBytes(t.DType, t.Shape); err != nil {
		return err
	}
	if len(t.Strides) != len(t.Shape) {
		return fmt.Errorf("%d strides for %d dimensions", len(t.Strides), len(t.Shape))
	}
	if offset < 0 || offset > room {
		return fmt.Errorf("offset %d of %d elements", offset, room)
	}
	last := offset
	for i, st := range t.Strides {
		if st < 0 {
			return fmt.Errorf("stride %d", st)
		}
		if n == 0 || st == 0 || t.Shape[i] == 1 {
			continue
		}
		if t.Shape[i]-1 > (math.MaxInt64-last)/st {
			return fmt.Errorf("shape %v by strides %v overflows", t.Shape, t.Strides)
		}
		last += (t.Shape[i] - 1) * st
	}
	if n > 0 && last >= room {
		return fmt.Errorf("shape %v by strides %v from %d on, of %d elements", t.Shape, t.Strides, offset, room)
	}
	return nil
}

// asInts returns a tuple of numbers, or a torch.Size of them, for each dimension
// of a tensor.
func asInts(v any) ([]int64, bool) {
	if o, ok := v.(*value.Object); ok && o.Call && o.QualifiedName() == "torch.Size" && len(o.Args) == 1 {
		v = o.Args[0]
	}
	var list []any
	switch l := v.(type) {
	case value.Tuple:
		list = l
	case []any:
		list = l
	default:
		return nil, false
	}
	if len(list) > tensor.MaxDims { // a tuple that tensors share is copied for each
		return nil, false
	}
	out := make([]int64, len(list))
	for i, e := range list {
		n, ok := asInt(e)
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}
