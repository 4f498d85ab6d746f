package torchsave

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Slot is a tensor with bytes that are not known when a file is laid out. A slot that occurs
// several times in a value is written once, as one tensor.
type Slot struct {
	DType        tensor.DType
	Shape        []int64
	RequiresGrad bool
	// Parameter makes it a torch.nn.Parameter.
	Parameter bool
	// Same, if not nil, is a slot with the same bytes, type and shape, and without a Same of its
	// own. Both become views of one storage, like tied weights.
	Same *Slot
}

// Part is a run of bytes of a file. Exactly one of Literal, Slot and Tail
// provides the bytes. It corresponds to commit.Part.
type Part struct {
	// Length is the number of bytes. Only a slot without elements has length
	// zero.
	Length  int64
	Literal []byte
	// Slot is the tensor to write; its bytes are contiguous.
	Slot *Slot
	// Tail returns the bytes once everything before them was written. They are
	// valid until its next call.
	Tail func() ([]byte, error)
	// Pass, if not nil, must be called with the bytes in order, in runs of any
	// size; from is the offset of p in the part.
	Pass func(p []byte, from int64)
}

// Layout is a file to be written: its parts in order, without gaps. Offsets in
// the file count from its first byte, also if it is part of a larger file. A
// layout must not be written concurrently.
type Layout struct {
	Parts []Part
	// Size is the sum of the parts' lengths.
	Size int64
}

// Lay lays out the file that torch.save writes for root: the types of package
// value, in which a tensor is a *Slot or a *tensor.Tensor. The position of every
// byte is known before the content of the slots; tensors must not change until
// the file is written. The error wraps ErrValue and describes the value if it
// cannot be pickled. Storages and tensors of unsupported types, which are objects
// in the types of package value, are among those.
func Lay(root any) (*Layout, error) {
	w := newTensorWriter()
	data, err := w.pickle(root)
	if err != nil {
		return nil, err
	}

	z := &zipLayout{}
	z.known(recordPickle, data)
	z.describe()
	for i, s := range w.storages {
		z.storage(fmt.Sprint(recordStorages, i), s)
	}
	return z.layout(), nil
}

// LayPickled lays out a file of an object that another program has pickled as torch.save does:
// pickled is the pickle, and storages are the storages in the order of their keys, 0, 1 and so
// on. All of them are bytes. name is the name of the file, which torch.save notes in the file.
func LayPickled(name string, pickled *Slot, storages []*Slot) *Layout {
	base := path.Base(name)
	z := &zipLayout{folder: strings.TrimSuffix(base, path.Ext(base))}
	z.storage(recordPickle, content{slot: pickled, bytes: pickled.Shape[0]})
	z.describe()
	for i, s := range storages {
		z.storage(fmt.Sprint(recordStorages, i), content{slot: s, bytes: s.Shape[0]})
	}
	return z.layout()
}

// describe appends the records about the form of the others.
func (z *zipLayout) describe() {
	z.known(recordFormat, []byte("1"))
	z.known(recordAlignment, fmt.Append(nil, alignment))
	z.known(recordByteOrder, []byte("little"))
}

// layout appends the last records and returns the file.
func (z *zipLayout) layout() *Layout {
	z.known(recordVersion, []byte("3\n"))
	z.finish()
	return &Layout{Parts: z.parts, Size: z.at}
}

// CheckValue returns the error that Lay would return for a value in which each
// value.Ref is replaced by a tensor.
func CheckValue(v any) error {
	w := newTensorWriter()
	w.refs = true
	_, err := w.pickle(v)
	return err
}

// Marshal returns the file that torch.save writes for v, which must not contain a
// Slot.
func Marshal(v any) ([]byte, error) {
	l, err := Lay(v)
	if err != nil {
		return nil, err
	}

	out := make([]byte, 0, l.Size)
	for _, p := range l.Parts {
		switch {
		case p.Slot != nil:
			return nil, fmt.Errorf("%w: a tensor without bytes", ErrValue)
		case p.Tail != nil:
			b, err := p.Tail()
			if err != nil {
				return nil, err
			}
			out = append(out, b...)
		default:
			out = append(out, p.Literal...)
		}
	}

	return out, nil
}

// storageNames are PyTorch's storage classes for the types that have one. Other
// types are stored as bytes.
var storageNames = map[tensor.DType]string{
	tensor.Float64: "DoubleStorage", tensor.Float32: "FloatStorage", tensor.Float16: "HalfStorage", tensor.BFloat16: "BFloat16Storage",
	tensor.Int64: "LongStorage", tensor.Int32: "IntStorage", tensor.Int16: "ShortStorage", tensor.Int8: "CharStorage",
	tensor.Uint8: "ByteStorage", tensor.Bool: "BoolStorage",
	tensor.Complex64: "ComplexFloatStorage", tensor.Complex128: "ComplexDoubleStorage",
}

// content is the source of a storage: a slot or a tensor.
type content struct {
	slot   *Slot
	tensor *tensor.Tensor
	bytes  int64
}

// tensorWriter replaces tensors by the calls that create them, and collects their
// storages.
type tensorWriter struct {
	storages []content
	keys     map[*Slot]int // numbers of the storages of slots
	seen     map[any]any   // replacements of tensors that occurred before
	// own are the calls that this writer created. Other calls of the same
	// functions describe tensors that could not be loaded again.
	own  map[*value.Object]bool
	refs bool  // whether a value.Ref is accepted as a tensor
	err  error // the first error, which Encode must not hide
}

func newTensorWriter() *tensorWriter {
	return &tensorWriter{keys: map[*Slot]int{}, seen: map[any]any{}, own: map[*value.Object]bool{}}
}

// pickle returns the pickle of a value and collects its storages.
func (w *tensorWriter) pickle(v any) ([]byte, error) {
	data, err := pickle.Encode(v, &pickle.EncodeOptions{Protocol: 2, Replace: w.replace, Allow: allow})
	if w.err != nil {
		return nil, w.err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	return data, nil
}

// replace is the Replace function of the pickle.
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

// storage returns the number of a tensor's storage: a new one, unless the slot
// has a Same that was written.
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

// call returns the call that creates a contiguous tensor from a storage.
func (w *tensorWriter) call(s *Slot, key string, bytes int64) any {
	class, count := thing("torch.storage", "UntypedStorage"), bytes
	name, typed := storageNames[s.DType]
	if typed {
		class, count = thing("torch", name), bytes/int64(s.DType.Size())
	}

	id := pickle.PersistentID{ID: value.Tuple{"storage", class, key, "cpu", count}}
	shape, strides := make(value.Tuple, len(s.Shape)), make(value.Tuple, len(s.Shape))
	for d, stride := range tensor.RowMajor(s.Shape) {
		shape[d], strides[d] = s.Shape[d], stride
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

// rebuild returns the call of a PyTorch function that creates tensors.
func (w *tensorWriter) rebuild(fn string, args value.Tuple) *value.Object {
	out := &value.Object{Module: "torch._utils", Name: fn, Call: true, Args: args}
	w.own[out] = true
	return out
}

// hooks returns the empty backward hooks of a tensor.
func hooks() any { return &value.Dict{Ordered: true} }

// thing returns the object of a name.
func thing(module, name string) *value.Object { return &value.Object{Module: module, Name: name} }

func (w *tensorWriter) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// allow reports whether a name may be written: one of the names in our own calls.
// The calls themselves are checked by refuses.
func allow(module, name string) bool {
	if makesTensor(module, name) || isStorage(module, name) {
		return true
	}
	_, err := tensor.ParseDType(name)
	return module == "torch" && err == nil
}

// makesTensor reports whether a name is a PyTorch function that creates the
// tensors of this package.
func makesTensor(module, name string) bool {
	return module == "torch._utils" && (name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3" || name == "_rebuild_parameter")
}

func isStorage(module, name string) bool {
	_, _, ok := storageType(thing(module, name))
	return ok
}

// refuses reports whether an object is a storage or tensor that this writer did
// not create: PyTorch could not load it. It sets w.err in that case.
func (w *tensorWriter) refuses(o *value.Object) bool {
	if o == nil || w.own[o] {
		return false
	}

	switch {
	case makesTensor(o.Module, o.Name):
		w.fail(fmt.Errorf("%w: %w: %s of %s", ErrValue, pickle.ErrUnknownClass, o.QualifiedName(), unknownTensor(o)))
	case o.Call && isStorage(o.Module, o.Name):
		w.fail(fmt.Errorf("%w: %w: the storage %s, which is not a tensor", ErrValue, pickle.ErrUnknownClass, o.QualifiedName()))
	default:
		return false
	}

	return true
}

// unknownTensor describes the result of a call that was not turned into a tensor.
func unknownTensor(o *value.Object) string {
	for _, a := range o.Args {
		switch a, _ := a.(*value.Object); {
		case a == nil:
		case makesTensor(a.Module, a.Name) && a.Call: // a parameter of it
			return unknownTensor(a)
		case a.Module == "torch" && !a.Call && !isStorage(a.Module, a.Name):
			return "a tensor of a type that is not known here, " + a.QualifiedName()
		}
	}
	return "a tensor of a kind that is not known here"
}
