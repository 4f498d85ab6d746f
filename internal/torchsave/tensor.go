package torchsave

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Tensor is a tensor in a file: a view of one of its storages. It is inside that
// storage, its strides are not negative, and its sizes do not overflow.
type Tensor struct {
	DType tensor.DType
	Shape []int64
	// Strides are the distances between neighbours in each dimension, in
	// elements.
	Strides []int64
	// Offset is the position of the first element in the file, and End the end of
	// the storage.
	Offset, End int64
	// Sum is the checksum of the storage's record. Nil: it has no checksum.
	Sum *Sum
	// StorageKey identifies the storage. Tensors with the same key share bytes.
	StorageKey   string
	RequiresGrad bool
	// Parameter is set for a torch.nn.Parameter.
	Parameter bool
	// Conj and Neg are set if the elements are the conjugates or the negatives of
	// the stored ones, which PyTorch computes lazily. Callers that read the
	// stored bytes must call Resolve.
	Conj, Neg bool
}

// Contiguous reports whether the elements are contiguous in the file, the last
// dimension fastest.
func (t *Tensor) Contiguous() bool {
	if slices.Contains(t.Shape, 0) {
		return true
	}
	for d, stride := range tensor.RowMajor(t.Shape) {
		if t.Shape[d] != 1 && t.Strides[d] != stride {
			return false
		}
	}
	return true
}

// NumBytes returns the size of the tensor's contiguous form.
func (t *Tensor) NumBytes() int64 {
	n, _ := tensor.NumBytes(t.DType, t.Shape) // validated before
	return n
}

// Span returns the number of bytes in the file from the first element to the
// last.
func (t *Tensor) Span() int64 {
	n := int64(1)
	for d, size := range t.Shape {
		if size == 0 {
			return 0
		}
		n += (size - 1) * t.Strides[d]
	}
	return n * int64(t.DType.Size())
}

// Read returns the elements in contiguous memory of their own. The error wraps
// errChecksum if the record that holds them is damaged.
func (t *Tensor) Read(ctx context.Context, read ReadFunc) (*tensor.Tensor, error) {
	data := make([]byte, t.Span())
	if len(data) > 0 {
		if err := read(ctx, data, t.Offset); err != nil {
			return nil, err
		}
	}

	if err := t.Sum.check(ctx, read, t.Offset, data); err != nil {
		return nil, err
	}

	t.Resolve(data)
	if t.Contiguous() {
		return tensor.FromBytes(t.DType, t.Shape, data)
	}

	v, err := tensor.FromStrided(t.DType, t.Shape, t.Strides, 0, data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errView, err)
	}
	return v.Clone(), nil
}

// Storage is a storage in a file: a run of elements, with tensors as views of it.
// It occurs in a value only if it is part of an object that is not a plain
// tensor.
type Storage struct {
	// Key identifies the storage in the file.
	Key string
	// DType is the type of the elements: uint8 for an untyped storage.
	DType tensor.DType
	// Offset and End are its range in the file.
	Offset, End int64
	// Sum is the checksum of the storage's record. Nil: it has no checksum.
	Sum     *Sum
	untyped bool
	class   *value.Object // its class in Python
}

// Sum is the checksum of a record.
type Sum struct {
	// Record is the record's name, with the archive's folder.
	Record string
	// Offset and End are the range of its bytes in the file.
	Offset, End int64
	// CRC is their CRC-32, with the polynomial of hash/crc32.IEEE.
	CRC uint32
}

// checkBytes is the size of the reads that only compute a checksum.
const checkBytes = 1 << 20

// check reads the record and compares it with its checksum. p holds the bytes of the file
// from off on, which are not read again if they are the whole record. If s is nil, there
// is no checksum.
func (s *Sum) check(ctx context.Context, read ReadFunc, off int64, p []byte) error {
	if s == nil {
		return nil
	}

	crc := uint32(0)
	if n := s.End - s.Offset; off == s.Offset && int64(len(p)) == n {
		crc = crc32.ChecksumIEEE(p)
	} else {
		buf := make([]byte, min(checkBytes, n))
		for at := s.Offset; at < s.End; at += int64(len(buf)) {
			buf = buf[:min(int64(len(buf)), s.End-at)]
			if err := read(ctx, buf, at); err != nil {
				return err
			}
			crc = crc32.Update(crc, crc32.IEEETable, buf)
		}
	}

	if crc != s.CRC {
		return fmt.Errorf("%w: %q", errChecksum, s.Record)
	}
	return nil
}

func (s *Storage) numBytes() int64 { return s.End - s.Offset }

// storageTypes are the classes of typed storages. Quantised ones are listed for
// their size only: no plain tensor uses them.
var storageTypes = map[string]tensor.DType{
	"DoubleStorage": tensor.Float64, "FloatStorage": tensor.Float32, "HalfStorage": tensor.Float16,
	"BFloat16Storage": tensor.BFloat16, "LongStorage": tensor.Int64, "IntStorage": tensor.Int32,
	"ShortStorage": tensor.Int16, "CharStorage": tensor.Int8, "ByteStorage": tensor.Uint8, "BoolStorage": tensor.Bool,
	"ComplexFloatStorage": tensor.Complex64, "ComplexDoubleStorage": tensor.Complex128,
	"QInt8Storage": tensor.Int8, "QUInt8Storage": tensor.Uint8, "QInt32Storage": tensor.Int32,
	"QUInt4x2Storage": tensor.Uint8, "QUInt2x4Storage": tensor.Uint8,
}

// storageID is a parsed persistent id.
type storageID struct {
	dtype   tensor.DType
	untyped bool
	class   *value.Object
	key     string
	// bytes is the size of the storage.
	bytes int64
	// view is the sixth item of an id in the stream, which describes a part of
	// the storage.
	view value.Tuple
}

// parseID parses a persistent id: ("storage", class, key, device, elements), with
// one more item in the stream.
func parseID(id any, parts int) (*storageID, error) {
	t, ok := id.(value.Tuple)
	if !ok || len(t) != parts || pickle.Fix(t[0]) != any("storage") {
		return nil, fmt.Errorf("%w: persistent id of another kind", errStorage)
	}

	location := t[3]
	if x, ok := location.(*pickle.Varying); ok { // the files of other ranks have other devices
		location = x.Value
	}
	class, ok1 := t[1].(*value.Object)
	key, ok2 := pickle.Fix(t[2]).(string)
	_, ok3 := location.(string)
	count, ok4 := pickle.Fix(t[4]).(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 || class.Call {
		return nil, fmt.Errorf("%w: persistent id with other items", errStorage)
	}

	out := &storageID{class: class, key: key, view: t[5:]}
	if out.dtype, out.untyped, ok = storageType(class); !ok {
		return nil, fmt.Errorf("%w: class %s of storage %q", errStorage, class.QualifiedName(), key)
	}
	if count < 0 || count > math.MaxInt64/int64(out.dtype.Size()) {
		return nil, fmt.Errorf("%w: storage %q of %d elements", errStorage, key, count)
	}

	out.bytes = count * int64(out.dtype.Size())
	return out, nil
}

// storageType returns the element type of a storage class.
func storageType(class *value.Object) (d tensor.DType, untyped, ok bool) {
	switch class.Module {
	case "torch", "torch.cuda", "torch.storage":
	default:
		return tensor.Invalid, false, false
	}

	switch class.Name {
	case "UntypedStorage", "_UntypedStorage":
		return tensor.Uint8, true, true
	}

	d, ok = storageTypes[class.Name]
	return d, false, ok
}

// storage returns the storage of a persistent id.
func (a *archive) storage(id any) (any, error) {
	p, err := parseID(id, 5)
	if err != nil {
		return nil, err
	}

	r := a.byName[recordStorages+p.key]
	if r == nil {
		return nil, noStorage(p)
	}
	if r.size != p.bytes {
		return nil, otherSize(p, r.size)
	}
	return &Storage{Key: p.key, DType: p.dtype, untyped: p.untyped, class: p.class, Offset: r.data, End: r.end(), Sum: r.sum()}, nil
}

// rebuilds are PyTorch's functions that create plain tensors. Each returns nil for
// arguments that it does not support.
var rebuilds = map[string]func(args value.Tuple) (*Tensor, error){
	"torch._utils._rebuild_tensor":               rebuildTensor,
	"torch._utils._rebuild_tensor_v2":            rebuildTensor,
	"torch._utils._rebuild_tensor_v3":            rebuildUntyped,
	"torch._utils._rebuild_parameter":            rebuildParameter,
	"torch._utils._rebuild_parameter_with_state": rebuildParameter,
	"torch._tensor._rebuild_from_type_v2":        rebuildFromType,
}

// constructs returns the functions for package pickle. Calls that are not supported
// remain objects.
func constructs() map[string]pickle.Construct {
	out := map[string]pickle.Construct{}
	for qualified, build := range rebuilds {
		dot := strings.LastIndexByte(qualified, '.')
		out[qualified] = func(args value.Tuple, kwargs map[string]any) (any, error) {
			if len(kwargs) == 0 {
				if t, err := build(args); t != nil || err != nil {
					return t, err
				}
			}
			return &value.Object{Module: qualified[:dot], Name: qualified[dot+1:], Call: true, Args: args, Kwargs: kwargs}, nil
		}
	}

	return out
}

// rebuildTensor returns the tensor of (storage, offset, size, strides) and, in
// the second version, (requires_grad, hooks[, metadata]).
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

// described sets the metadata of a call, if there is any. It returns nil if the
// metadata is not supported.
func (t *Tensor) described(metadata value.Tuple, err error) (*Tensor, error) {
	if err != nil || len(metadata) > 0 && !t.setMetadata(metadata[0]) {
		return nil, err
	}
	return t, nil
}

// rebuildUntyped returns the tensor of (storage, offset, size, strides,
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
		return nil, nil // an unsupported type
	}

	t, err := view(s, d, args[1:4])
	if err == nil {
		t.RequiresGrad, _ = args[4].(bool)
	}
	return t.described(args[7:], err)
}

// rebuildParameter returns the parameter of (tensor, requires_grad, hooks[,
// state]).
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

// rebuildFromType returns the tensor of (function, class, arguments, state) if
// the class is for plain tensors. It drops the state, which consists of
// attributes that a user set.
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

// view returns the tensor of (offset, size, strides) if it is inside s.
func view(s *Storage, d tensor.DType, args value.Tuple) (*Tensor, error) {
	offset, ok1 := pickle.Fix(args[0]).(int64)
	shape, ok2 := Sizes(args[1])
	strides, ok3 := Sizes(args[2])
	if !ok1 || !ok2 || !ok3 {
		return nil, fmt.Errorf("%w: of storage %q: offset, size and strides are not integers, or too many", errView, s.Key)
	}

	t := &Tensor{DType: d, Shape: shape, Strides: strides, StorageKey: s.Key, End: s.End, Sum: s.Sum}
	if err := t.checkInside(offset, s.numBytes()/int64(d.Size())); err != nil {
		return nil, fmt.Errorf("%w: of storage %q: %w", errView, s.Key, err)
	}

	t.Offset = s.Offset + offset*int64(d.Size())
	return t, nil
}

// checkInside returns an error unless the tensor is within room elements, if its first
// element is at offset.
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

// Sizes returns the integers of a tuple, a list or a torch.Size, one for each dimension
// of a tensor. It returns false for anything else, and if they are too many.
func Sizes(v any) ([]int64, bool) {
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

	if len(list) > tensor.MaxDims { // tensors may share the tuple, and each copies it
		return nil, false
	}

	out := make([]int64, len(list))
	for i, e := range list {
		n, ok := pickle.Fix(e).(int64)
		if !ok {
			return nil, false
		}
		out[i] = n
	}

	return out, true
}

// Resolve turns the stored elements in p into the tensor's elements. It leaves them unchanged
// unless Conj or Neg is set.
func (t *Tensor) Resolve(p []byte) {
	size := t.DType.Size()
	switch kindOf(t.DType) {
	case kindComplex:
		half := size / 2
		if t.Neg {
			flipSigns(p, size, half)
		}
		if t.Conj != t.Neg {
			flipSigns(p, size, size)
		}
	case kindFloat:
		if t.Neg {
			flipSigns(p, size, size)
		}
	case kindInt:
		if t.Neg {
			negate(p, size)
		}
	}
}

// flipSigns flips the top bit of the byte before end in each element.
func flipSigns(p []byte, size, end int) {
	for i := end - 1; i < len(p); i += size {
		p[i] ^= 0x80
	}
}

// negate negates integers, which wrap around.
func negate(p []byte, size int) {
	le := binary.LittleEndian
	for ; len(p) >= size; p = p[size:] {
		switch size {
		case 1:
			p[0] = -p[0]
		case 2:
			le.PutUint16(p, -le.Uint16(p))
		case 4:
			le.PutUint32(p, -le.Uint32(p))
		case 8:
			le.PutUint64(p, -le.Uint64(p))
		}
	}
}

// kind is the arithmetic kind of an element type.
type kind int

const (
	kindOther kind = iota // bool and 8-bit floats, which PyTorch does not negate
	kindInt
	kindFloat
	kindComplex
)

func kindOf(d tensor.DType) kind {
	switch d {
	case tensor.Complex64, tensor.Complex128:
		return kindComplex
	case tensor.Float64, tensor.Float32, tensor.Float16, tensor.BFloat16:
		return kindFloat
	case tensor.Int64, tensor.Int32, tensor.Int16, tensor.Int8, tensor.Uint64, tensor.Uint32, tensor.Uint16, tensor.Uint8:
		return kindInt
	}
	return kindOther
}

// setMetadata sets the flags in the last argument of a call, a dict. It returns
// false for flags that it does not support: then the stored elements may
// differ from the tensor's.
func (t *Tensor) setMetadata(v any) bool {
	flags, ok := flagsOf(v)
	if !ok {
		return false
	}

	for name, on := range flags {
		switch {
		case !on:
		case name == "conj" && kindOf(t.DType) == kindComplex:
			t.Conj = true
		case name == "neg" && kindOf(t.DType) != kindOther:
			t.Neg = true
		default:
			return false
		}
	}

	return true
}

// maxFlags bounds the flags of a tensor. PyTorch has two.
const maxFlags = 16

// flagsOf returns the flags of a dict by name.
func flagsOf(v any) (map[string]bool, bool) {
	out := map[string]bool{}
	add := func(k, e any) bool {
		name, ok1 := k.(string)
		on, ok2 := e.(bool)
		out[name] = on
		return ok1 && ok2 && len(out) <= maxFlags
	}
	switch v := v.(type) {
	case nil:
	case map[string]any:
		for k, e := range v {
			if !add(k, e) {
				return nil, false
			}
		}
	case *value.Dict:
		for _, p := range v.Pairs {
			if !add(p.Key, p.Value) {
				return nil, false
			}
		}
	default:
		return nil, false
	}

	return out, true
}

// Materialise returns v with each *Tensor replaced by a contiguous *tensor.Tensor
// in memory of its own, and each *Storage by an object of its class around a
// tensor of one dimension. A tensor that occurs several times is read once and
// stays shared. If the tensors have more than limit bytes in total, the error
// wraps errLimit and no memory is allocated. v itself is not changed. The records
// that hold the tensors are compared with their checksums.
func Materialise(ctx context.Context, v any, read ReadFunc, limit int64) (any, error) {
	m := &materialiser{ctx: ctx, read: read, room: limit, made: map[*Tensor]*tensor.Tensor{}, good: map[int64]bool{}}
	r := value.Replacer{With: Inside(func(_ []string, t *Tensor) (any, error) { return m.tensor(t) })}
	return r.Replace(v)
}

// Inside returns a With function for value.Replacer that replaces the tensors in a value by
// the results of with. A *Storage becomes an object of its class. Its argument 0 is the
// replacement of a one-dimensional tensor with all its elements. with is called again for a
// tensor that occurs several times.
func Inside(with func(at []string, t *Tensor) (any, error)) func(at []string, v any) (any, bool, error) {
	storages := map[*Storage]any{}
	return func(at []string, v any) (any, bool, error) {
		switch v := v.(type) {
		case *Tensor:
			out, err := with(at, v)
			return out, true, err
		case *Storage:
			if storages[v] == nil {
				t, err := with(append(slices.Clip(at), "0"), v.flat())
				if err != nil {
					return nil, true, err
				}
				storages[v] = &value.Object{Module: v.class.Module, Name: v.class.Name, Call: true, Args: value.Tuple{t}}
			}
			return storages[v], true, nil
		}
		return nil, false, nil
	}
}

// flat returns all elements of the storage as a tensor.
func (s *Storage) flat() *Tensor {
	return &Tensor{
		DType: s.DType, Shape: []int64{s.numBytes() / int64(s.DType.Size())}, Strides: []int64{1},
		Offset: s.Offset, End: s.End, Sum: s.Sum, StorageKey: s.Key,
	}
}

// materialiser reads each tensor once, and compares each record once.
type materialiser struct {
	ctx  context.Context
	read ReadFunc
	room int64
	made map[*Tensor]*tensor.Tensor
	good map[int64]bool // the records with matching checksums, by offset
}

// tensor reads a tensor if its bytes in the file and in memory are within the
// limit.
func (m *materialiser) tensor(t *Tensor) (any, error) {
	if out := m.made[t]; out != nil {
		return out, nil
	}

	n := t.NumBytes()
	if !t.Contiguous() {
		n = max(n, t.Span())
	}

	if n > m.room {
		return nil, fmt.Errorf("%w: tensor %v of %v inside of a value: %d bytes, and %d are allowed", errLimit, t.Shape, t.DType, n, m.room)
	}

	m.room -= n
	x := *t
	if x.Sum != nil && m.good[x.Sum.Offset] {
		x.Sum = nil
	}

	out, err := x.Read(m.ctx, m.read)
	if err == nil && t.Sum != nil {
		m.good[t.Sum.Offset] = true
	}
	m.made[t] = out
	return out, err
}
