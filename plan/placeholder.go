package plan

import "github.com/cairn-ckpt/cairn/tensor"

// Placeholders returns the tensors of s without memory, at any depth, by name. For
// a sharded tensor it returns the result of its method Local, if it has one, as
// shard.Tensor does. A planner that calls [tensor.Tensor.Materialize] for them in
// SetUp loads into them; otherwise saves and loads refuse them. The error wraps
// ErrState if s cannot be flattened into names.
func Placeholders(s State) (map[string]*tensor.Tensor, error) {
	leaves, err := flatten(s, nil)
	if err != nil {
		return nil, err
	}
	out := map[string]*tensor.Tensor{}
	for _, l := range leaves {
		v := plain(l.value)
		if local, ok := v.(interface{ Local() *tensor.Tensor }); ok && !isNil(v) {
			v = local.Local()
		}
		if t, ok := v.(*tensor.Tensor); ok && t != nil && t.IsPlaceholder() {
			out[l.fqn] = t
		}
	}
	return out, nil
}

// checkMemory returns [tensor.ErrPlaceholder] if box i of a tensor has no memory.
// An error of Part is left to the call that needs the part.
func checkMemory(v any, i int) error {
	t, ok := v.(*tensor.Tensor)
	if !ok {
		t, _ = v.(Checkpointable).Part(i)
	}
	if t != nil && t.IsPlaceholder() {
		return tensor.ErrPlaceholder
	}
	return nil
}
