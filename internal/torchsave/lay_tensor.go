package torchsave

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// storageNames are the classes of the storages that PyTorch makes for the
// types that it has had from the start. It stores the others as bytes.
var storageNames = map[tensor.DType]string{
	tensor.Float64: "DoubleStorage", tensor.Float32: "FloatStorage", tensor.Float16: "HalfStorage", tensor.BFloat16: "BFloat16Storage",
	tensor.Int64: "LongStorage", tensor.Int32: "IntStorage", tensor.Int16: "ShortStorage", tensor.Int8: "CharStorage",
	tensor.Uint8: "ByteStorage", tensor.Bool: "BoolStorage",
	tensor.Complex64: "ComplexFloatStorage", tensor.Complex128: "ComplexDoubleStorage",
}

// content is what a storage is written from: a slot or a tensor.
type content struct {
	slot   *Slot
	tensor *tensor.Tensor
	bytes  int64
}

// tensorWriter turns tensors into the calls that make them, and collects their
// storages.
type tensorWriter struct {
	storages []content
	keys     map[*Slot]int // numbers of the storages of slots
	seen     map[any]any   // what stands for a tensor that was seen before
	// own are the calls that were made here: others of those names are of
	// tensors that would not come back.
	own  map[*value.Object]bool
	refs bool                           // whether a value.Ref may stand for a tensor
	more func(module, name string) bool // allows what the caller allows
	err  error                          // the first one, which Encode must not hide
}

func newTensorWriter(more func(module, name string) bool) *tensorWriter {
	if more == nil {
		more = func(string, string) bool { return false }
	}
	return &tensorWriter{keys: map[*Slot]int{}, seen: map[any]any{}, own: map[*value.Object]bool{}, more: more}
}

// pickle returns the pickle of a value and takes down its storages.
func (w *tensorWriter) pickle(v any) ([]byte, error) {
	data, err := pickle.Encode(v, &pickle.EncodeOptions{Protocol: 2, Replace: w.replace, Allow: w.allow})
	if w.err != nil {
		return nil, w.err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	return data, nil
}

// replace is asked for each value of the file.
func (w *tensorWriter) replace(v any) (any, bool) {
	var c content
	s := &Slot{}
	switch v := v.(type) {
	case *Slot:
		s, c.slot = v, v
	case *tensor.Tensor:
		s.DType, s.Shape, c.tensor = v.DType(), v.Shape(), v
	case *value.Object:
		return nil, w.refuses(v)
	case value.Ref:
		if w.refs {
			return nil, true
		}
		w.fail(fmt.Errorf("%w: it refers to the tensor %q", ErrValue, v.FQN))
		return nil, true
	default:
		return nil, false
	}
	if out, ok := w.seen[v]; ok {
		return out, true
	}
	var err error
	if c.bytes, err = tensor.NumBytes(s.DType, s.Shape); err != nil {
		w.fail(fmt.Errorf("%w: tensor of %v: %w", ErrValue, s.Shape, err))
		return nil, true
	}
	key := w.storage(s, c)
	out := w.call(s, strconv.Itoa(key), c.bytes)
	w.seen[v] = out
	return out, true
}

// storage returns the number of the storage of a tensor: a new one, unless the
// slot is the same as another.
func (w *tensorWriter) storage(s *Slot, c content) int {
	if s.Same != nil {
		c.slot = s.Same
	}
	if n, ok := w.keys[c.slot]; ok {
		return n
	}
	n := len(w.storages)
	if c.slot != nil {
		w.keys[c.slot] = n
	}
	w.storages = append(w.storages, c)
	return n
}

// call returns the call that makes a contiguous tensor of a storage.
func (w *tensorWriter) call(s *Slot, key string, bytes int64) any {
	class, count := thing("torch.storage", "UntypedStorage"), bytes
	name, typed := storageNames[s.DType]
	if typed {
		class, count = thing("torch", name), bytes/int64(s.DType.Size())
	}
	id := pickle.PersistentID{ID: value.Tuple{"storage", class, key, "cpu", count}}
	shape, strides := make(value.Tuple, len(s.Shape)), make(value.Tuple, len(s.Shape))
	step := int64(1)
	for d, n := range slices.Backward(s.Shape) {
		shape[d], strides[d] = n, step
		step *= max(n, 1)
	}
	args := value.Tuple{id, int64(0), shape, strides, s.RequiresGrad && !s.Parameter, hooks()}
	fn := "_rebuild_tensor_v2"
	if !typed {
		fn, args = "_rebuild_tensor_v3", append(args, thing("torch", s.DType.String()))
	}
	out := w.rebuild(fn, args)
	if !s.Parameter {
		return out
	}
	return w.rebuild("_rebuild_parameter", value.Tuple{out, s.RequiresGrad, hooks()})
}

// rebuild returns the call of one of PyTorch's functions that make tensors.
func (w *tensorWriter) rebuild(fn string, args value.Tuple) *value.Object {
	out := &value.Object{Module: "torch._utils", Name: fn, Call: true, Args: args}
	w.own[out] = true
	return out
}

// hooks returns the backward hooks of a tensor: none.
func hooks() any { return &value.Dict{Ordered: true} }

// thing returns what a name stands for.
func thing(module, name string) *value.Object { return &value.Object{Module: module, Name: name} }

func (w *tensorWriter) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}
