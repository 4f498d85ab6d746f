package torchsave

import (
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Storage is a storage inside of a file: a run of elements that tensors are
// views of. It stands in a value where something other than a plain tensor was
// made of it.
type Storage struct {
	// Key names the storage in the file.
	Key string
	// DType is the type of the elements. An untyped storage has bytes.
	DType tensor.DType
	// Offset and End are where its bytes begin and end in the file.
	Offset, End int64
	// Sum is the record that the storage is. Nil: it has no checksum.
	Sum     *Sum
	untyped bool
	class   *value.Object // what Python calls it
}

// Sum is the checksum of a record.
type Sum struct {
	// Record is the record's name, with the archive's folder.
	Record string
	// Offset and End are where its bytes begin and end in the file.
	Offset, End int64
	// CRC is their CRC-32, with the polynomial of hash/crc32.IEEE.
	CRC uint32
}

// numBytes returns the bytes of the storage.
func (s *Storage) numBytes() int64 { return s.End - s.Offset }

// storageTypes are the classes of typed storages. The quantised ones are here
// for their size: only tensors of their own kind are made of them.
var storageTypes = map[string]tensor.DType{
	"DoubleStorage": tensor.Float64, "FloatStorage": tensor.Float32, "HalfStorage": tensor.Float16,
	"BFloat16Storage": tensor.BFloat16, "LongStorage": tensor.Int64, "IntStorage": tensor.Int32,
	"ShortStorage": tensor.Int16, "CharStorage": tensor.Int8, "ByteStorage": tensor.Uint8, "BoolStorage": tensor.Bool,
	"ComplexFloatStorage": tensor.Complex64, "ComplexDoubleStorage": tensor.Complex128,
	"QInt8Storage": tensor.Int8, "QUInt8Storage": tensor.Uint8, "QInt32Storage": tensor.Int32,
	"QUInt4x2Storage": tensor.Uint8, "QUInt2x4Storage": tensor.Uint8,
}

// storageID is what a persistent id says.
type storageID struct {
	dtype   tensor.DType
	untyped bool
	class   *value.Object
	key     string
	// bytes is the size of the storage.
	bytes int64
	// view is what stands after the five parts that every id has, in the stream.
	view value.Tuple
}

// parseID reads a persistent id: ("storage", class, key, device, elements), and
// in the stream one part more.
func parseID(id any, parts int) (*storageID, error) {
	t, ok := id.(value.Tuple)
	if !ok || len(t) != parts || t[0] != any("storage") {
		return nil, fmt.Errorf("%w: persistent id of another kind", ErrStorage)
	}
	class, ok1 := t[1].(*value.Object)
	key, ok2 := t[2].(string)
	_, ok3 := t[3].(string)
	count, ok4 := asInt(t[4])
	if !ok1 || !ok2 || !ok3 || !ok4 || class.Call {
		return nil, fmt.Errorf("%w: persistent id of other parts", ErrStorage)
	}
	out := &storageID{class: class, key: key, view: t[5:]}
	if out.dtype, out.untyped, ok = storageType(class); !ok {
		return nil, fmt.Errorf("%w: class %s of storage %q", ErrStorage, class.QualifiedName(), key)
	}
	if count < 0 || count > math.MaxInt64/int64(out.dtype.Size()) {
		return nil, fmt.Errorf("%w: storage %q of %d elements", ErrStorage, key, count)
	}
	out.bytes = count * int64(out.dtype.Size())
	return out, nil
}

// storageType returns the elements of a class of storages.
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

// asInt returns a number of a pickle as one of 64 bits.
func asInt(v any) (int64, bool) {
	n, ok := v.(int64)
	return n, ok
}

// storage finds the record that a persistent id names.
func (a *archive) storage(id any) (any, error) {
	p, err := parseID(id, 5)
	if err != nil {
		return nil, err
	}
	r := a.byName[recordStorages+p.key]
	if r == nil {
		return nil, fmt.Errorf("%w: no record %q", ErrStorage, recordStorages+p.key)
	}
	if r.size != p.bytes {
		return nil, fmt.Errorf("%w: storage %q should have %d bytes, its record has %d", ErrStorage, p.key, p.bytes, r.size)
	}
	return &Storage{Key: p.key, DType: p.dtype, untyped: p.untyped, class: p.class, Offset: r.data, End: r.end(), Sum: r.sum()}, nil
}
