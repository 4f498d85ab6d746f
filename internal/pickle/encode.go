package pickle

import (
	"encoding/binary"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/cairn-ckpt/cairn/value"
)

// EncodeOptions are the options of Encode. Nil means the defaults.
type EncodeOptions struct {
	// Protocol is the protocol of the pickle, 2 to 5. Zero: 4.
	Protocol int
	// Replace is called for each value before it is encoded. If it returns true,
	// its result is encoded instead. May be nil.
	Replace func(v any) (any, bool)
	// Allow reports whether a name that is not Known may be written. Nil: no such
	// name.
	Allow func(module, name string) bool
}

// PersistentID is encoded as a persistent id.
type PersistentID struct{ ID any }

// maxDepth bounds how deeply encoded values nest.
const maxDepth = 1000

// Encode returns the pickle of v, which Python loads as an equal object. v may
// consist of everything that Decode returns, Go's other integers and floats,
// slices and maps with string keys, and PersistentID. Objects in their normal
// form are written as Python pickles them. Parts that v shares by reference are
// written once. Equal values give equal bytes.
//
// The error wraps ErrUnknownClass and names the class if a class is neither Known
// nor allowed, ErrUnsupported if a Go type has no counterpart in Python, ErrCycle
// if a value contains itself, and ErrLimit if values are nested too deeply.
func Encode(v any, o *EncodeOptions) (data []byte, err error) {
	defer Catch(&err)
	e := newEncoder(o)
	e.value(v, 0)
	return append(e.b, opStop), nil
}

// encoder writes a pickle. Its methods panic with a failure if a value cannot be
// encoded.
type encoder struct {
	o       EncodeOptions
	b       []byte
	next    int // the next memo number
	strs    map[string]int
	globals map[[2]string]int
	seen    map[identity]int // memo numbers of shared containers
}

func newEncoder(o *EncodeOptions) *encoder {
	e := &encoder{strs: map[string]int{}, globals: map[[2]string]int{}, seen: map[identity]int{}}
	if o != nil {
		e.o = *o
	}
	if e.o.Protocol == 0 {
		e.o.Protocol = 4
	}
	if e.o.Protocol < 2 || e.o.Protocol > maxProtocol {
		Fail("%w: protocol %d", ErrUnsupported, e.o.Protocol)
	}
	e.b = append(e.b, opProto, byte(e.o.Protocol))
	return e
}

// open marks a container that is being written.
const open = -1

func (e *encoder) value(v any, depth int) {
	if depth > maxDepth {
		Fail("%w: nested deeper than %d", ErrLimit, maxDepth)
	}
	if e.o.Replace != nil {
		if r, ok := e.o.Replace(v); ok {
			v = r
		}
	}
	if e.scalar(v) {
		return
	}
	switch v := v.(type) {
	case string:
		e.str(v)
	case []byte:
		e.bytes(v)
	case complex128:
		e.reduce("builtins", "complex", real(v), imag(v))
	case packedDType:
		e.call(v.Object, identity{}, depth)
	case PersistentID:
		e.value(v.ID, depth+1)
		e.b = append(e.b, opBinPersID)
	default:
		e.shared(v, depth)
	}
}

// shared writes a container, or a reference to it if it was written before.
func (e *encoder) shared(v any, depth int) {
	id, ok := identify(v)
	if n, seen := e.seen[id]; ok && seen {
		if n == open {
			panic(failure{ErrCycle})
		}
		e.get(n)
		return
	}
	if ok {
		e.seen[id] = open
	}
	switch v := v.(type) {
	case value.Tuple:
		e.tuple(v, id, depth)
	case []any:
		e.list(v, id, depth)
	case map[string]any:
		e.stringMap(v, id, depth)
	case *value.Dict:
		e.dict(v, id, depth)
	case *value.Set:
		e.set(v, id, depth)
	case *value.Object:
		e.object(v, id, depth)
	default:
		e.reflected(v, depth)
	}
}

// done records that the container id was written and has the memo number n.
func (e *encoder) done(id identity, n int) {
	if id != (identity{}) {
		e.seen[id] = n
	}
}

// put stores the topmost value in the memo and returns its number.
func (e *encoder) put() int {
	n := e.next
	e.next++
	switch {
	case e.o.Protocol >= 4:
		e.b = append(e.b, opMemoize)
	case n < 256:
		e.b = append(e.b, opBinPut, byte(n))
	default:
		e.b = append(e.b, opLongBinPut, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	return n
}

func (e *encoder) get(n int) {
	if n < 256 {
		e.b = append(e.b, opBinGet, byte(n))
		return
	}
	e.b = append(e.b, opLongBinGet, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
}

// global writes a name. The older protocols write it as lines, so a name with a
// line feed could smuggle in opcodes.
func (e *encoder) global(module, name string) {
	key := [2]string{module, name}
	if n, ok := e.globals[key]; ok {
		e.get(n)
		return
	}
	if strings.ContainsAny(module+name, "\n\r") || name == "" || !validWTF8([]byte(module+name)) {
		Fail("%w: the name %.40q of %.40q", ErrUnsupported, name, module)
	}
	e.nameOf(module, name)
	e.globals[key] = e.put()
}

// nameOf writes a name without looking it up in the memo.
func (e *encoder) nameOf(module, name string) {
	if e.o.Protocol < 4 {
		e.b = append(append(append(e.b, opGlobal), module...), '\n')
		e.b = append(append(e.b, name...), '\n')
		return
	}
	e.b = appendStr(e.b, module, e.o.Protocol)
	e.b = appendStr(e.b, name, e.o.Protocol)
	e.b = append(e.b, opStackGlobal)
}

// reduce writes the call of a name that is always allowed. The arguments are at
// the nesting depth of the call.
func (e *encoder) reduce(module, name string, args ...any) {
	e.global(module, name)
	e.tuple(args, identity{}, maxDepth-2)
	e.b = append(e.b, opReduce)
}

// identity is equal for two references to the same container.
type identity struct {
	at   unsafe.Pointer
	len  int
	kind byte
}

// identify returns the identity of a container that may be shared, or false.
func identify(v any) (identity, bool) {
	switch v := v.(type) {
	case []any:
		return identity{unsafe.Pointer(unsafe.SliceData(v)), len(v), 'l'}, len(v) > 0
	case value.Tuple:
		return identity{unsafe.Pointer(unsafe.SliceData(v)), len(v), 't'}, len(v) > 0
	case map[string]any:
		return identity{reflect.ValueOf(v).UnsafePointer(), 0, 'm'}, v != nil
	case *value.Dict:
		return identity{unsafe.Pointer(v), 0, 'd'}, v != nil
	case *value.Set:
		return identity{unsafe.Pointer(v), 0, 's'}, v != nil
	case *value.Object:
		return identity{unsafe.Pointer(v), 0, 'o'}, v != nil
	}
	return identity{}, false
}

// batch is the number of items that Python writes between two marks.
const batch = 1000

func (e *encoder) tuple(t []any, id identity, depth int) {
	if len(t) == 0 {
		e.b = append(e.b, opEmptyTuple)
		return
	}
	if len(t) > 3 {
		e.b = append(e.b, opMark)
	}
	for _, v := range t {
		e.value(v, depth+1)
	}
	if len(t) > 3 {
		e.b = append(e.b, opTuple)
	} else {
		e.b = append(e.b, opTuple1+byte(len(t)-1))
	}
	if id != (identity{}) {
		e.done(id, e.put())
	}
}

func (e *encoder) list(l []any, id identity, depth int) {
	e.b = append(e.b, opEmptyList)
	n := e.put()
	e.appends(l, depth)
	e.done(id, n)
}

// appends writes the opcodes that append items to the list or object on the
// stack.
func (e *encoder) appends(l []any, depth int) {
	for part := range slices.Chunk(l, batch) {
		e.b = append(e.b, opMark)
		for _, v := range part {
			e.value(v, depth+1)
		}
		e.b = append(e.b, opAppends)
	}
}

func (e *encoder) stringMap(m map[string]any, id identity, depth int) {
	p := make([]value.Pair, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		p = append(p, value.Pair{Key: k, Value: m[k]})
	}
	e.b = append(e.b, opEmptyDict)
	n := e.put()
	e.setItems(p, depth)
	e.done(id, n)
}

// setItems writes the opcodes that set items in the dict or object on the stack.
func (e *encoder) setItems(p []value.Pair, depth int) {
	for part := range slices.Chunk(p, batch) {
		e.b = append(e.b, opMark)
		for _, kv := range part {
			e.value(kv.Key, depth+1)
			e.value(kv.Value, depth+1)
		}
		e.b = append(e.b, opSetItems)
	}
}

func (e *encoder) dict(d *value.Dict, id identity, depth int) {
	switch {
	case d == nil:
		e.b = append(e.b, opNone)
		return
	case d.Ordered:
		e.reduce("collections", "OrderedDict")
	default:
		e.b = append(e.b, opEmptyDict)
	}
	n := e.put()
	e.setItems(d.Pairs, depth)
	e.done(id, n)
}

func (e *encoder) set(s *value.Set, id identity, depth int) {
	switch {
	case s == nil:
		e.b = append(e.b, opNone)
	case e.o.Protocol < 4: // without opcodes for sets
		name := "set"
		if s.Frozen {
			name = "frozenset"
		}
		e.global("builtins", name)
		e.tuple([]any{append([]any{}, s.Items...)}, identity{}, depth)
		e.b = append(e.b, opReduce)
		e.done(id, e.put())
	case s.Frozen:
		e.b = append(e.b, opMark)
		for _, v := range s.Items {
			e.value(v, depth+1)
		}
		e.b = append(e.b, opFrozenSet)
		e.done(id, e.put())
	default:
		e.b = append(e.b, opEmptySet)
		n := e.put()
		e.b = append(e.b, opMark)
		for _, v := range s.Items {
			e.value(v, depth+1)
		}
		e.b = append(e.b, opAddItems)
		e.done(id, n)
	}
}

// reflected writes Go's own numbers, slices and maps.
func (e *encoder) reflected(v any, depth int) {
	rv := reflect.ValueOf(v)
	switch {
	case rv.CanInt():
		e.int(rv.Int())
	case rv.CanUint():
		e.scalar(rv.Uint())
	case rv.CanFloat():
		e.scalar(rv.Float())
	case rv.Kind() == reflect.Slice:
		l := make([]any, rv.Len())
		for i := range l {
			l[i] = rv.Index(i).Interface()
		}
		e.list(l, identity{}, depth)
	case rv.Kind() == reflect.Map && rv.Type().Key().Kind() == reflect.String:
		m := make(map[string]any, rv.Len())
		for k, x := range rv.Seq2() {
			m[k.String()] = x.Interface()
		}
		e.stringMap(m, identity{}, depth)
	default:
		Fail("%w: a value of type %T", ErrUnsupported, v)
	}
}

// object writes a name or a call.
func (e *encoder) object(o *value.Object, id identity, depth int) {
	if o == nil {
		e.b = append(e.b, opNone)
		return
	}
	if !o.Call {
		delete(e.seen, id) // names are not containers
		if o.Module == "torch" && layouts[o.Name] {
			e.reduce("torch.serialization", "_get_layout", "torch."+o.Name)
			return
		}
		e.permit(o)
		e.global(o.Module, o.Name)
		return
	}
	raw := denormal(o)
	if raw == o { // the names of our own packed forms are always allowed
		e.permit(o)
	}
	e.call(raw, id, depth)
}

// permit fails unless the name may be written.
func (e *encoder) permit(o *value.Object) {
	if !Known(o.Module, o.Name) && (e.o.Allow == nil || !e.o.Allow(o.Module, o.Name)) {
		Fail("%w: %s", ErrUnknownClass, o.QualifiedName())
	}
}

// call writes a call, then the state and the items of its result.
func (e *encoder) call(o *value.Object, id identity, depth int) {
	e.invoke(o, depth)
	n := e.put()
	e.appends(o.Items, depth)
	e.setItems(o.Pairs, depth)
	if o.State != nil {
		e.value(o.State, depth+1)
		e.b = append(e.b, opBuild)
	}
	e.done(id, n)
}

// invoke writes the call itself. Only __new__ can have named arguments.
func (e *encoder) invoke(o *value.Object, depth int) {
	named := len(o.Kwargs) > 0
	if named && !o.New {
		Fail("%w: %s called with named arguments", ErrUnsupported, o.QualifiedName())
	}
	if named && e.o.Protocol < 4 {
		e.global("copyreg", "__newobj_ex__")
	}
	e.global(o.Module, o.Name)
	e.tuple(o.Args, identity{}, depth)
	if named {
		e.stringMap(o.Kwargs, identity{}, depth)
	}
	switch {
	case named && e.o.Protocol < 4:
		e.b = append(e.b, opTuple3, opReduce)
	case named:
		e.b = append(e.b, opNewObjEx)
	case o.New:
		e.b = append(e.b, opNewObj)
	default:
		e.b = append(e.b, opReduce)
	}
}

// denormal returns an object in the form in which Python pickles it. It returns o
// itself if that is the normal form.
func denormal(o *value.Object) *value.Object {
	switch {
	case o.Module == "datetime":
		return packDateTime(o)
	case o.Module == "numpy":
		return packNumpy(o)
	}
	return o
}

// badForm fails because of the arguments of o.
func badForm(o *value.Object) {
	Fail("%w: a %s with these arguments", ErrUnsupported, o.QualifiedName())
}

// scalar writes a value without parts, which is never shared. It returns false
// for other values.
func (e *encoder) scalar(v any) bool {
	switch v := v.(type) {
	case nil:
		e.b = append(e.b, opNone)
	case bool:
		op := byte(opNewFalse)
		if v {
			op = opNewTrue
		}
		e.b = append(e.b, op)
	case int64:
		e.int(v)
	case uint64:
		if v <= math.MaxInt64 {
			e.int(int64(v))
		} else {
			e.big(new(big.Int).SetUint64(v))
		}
	case *big.Int:
		if v == nil {
			e.b = append(e.b, opNone)
		} else {
			e.big(v)
		}
	case float64:
		e.b = binary.BigEndian.AppendUint64(append(e.b, opBinFloat), math.Float64bits(v))
	default:
		return false
	}
	return true
}

func (e *encoder) int(v int64) { e.b = appendInt(e.b, v) }

// appendInt appends the shortest opcode for v.
func appendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0 && v < 1<<8:
		return append(b, opBinInt1, byte(v))
	case v >= 0 && v < 1<<16:
		return append(b, opBinInt2, byte(v), byte(v>>8))
	case v == int64(int32(v)):
		return binary.LittleEndian.AppendUint32(append(b, opBinInt), uint32(v))
	}
	le := binary.LittleEndian.AppendUint64(nil, uint64(v))
	n := 8
	for n > 1 && littleEndian(le[:n-1]) == v {
		n--
	}
	return append(append(b, opLong1, byte(n)), le[:n]...)
}

func (e *encoder) big(n *big.Int) {
	if n.IsInt64() {
		e.int(n.Int64())
		return
	}
	b := twosComplement(n)
	if len(b) < 256 {
		e.b = append(e.b, opLong1, byte(len(b)))
	} else {
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opLong4), uint32(len(b)))
	}
	e.b = append(e.b, b...)
}

// str writes a string, or a reference if it was written before.
func (e *encoder) str(s string) {
	if n, ok := e.strs[s]; ok {
		e.get(n)
		return
	}
	if !utf8.ValidString(s) && !validWTF8([]byte(s)) {
		Fail("%w: string %.40q is not UTF-8", ErrUnsupported, s)
	}
	e.b = appendStr(e.b, s, e.o.Protocol)
	e.strs[s] = e.put()
}

func appendStr(b []byte, s string, protocol int) []byte {
	switch {
	case protocol >= 4 && len(s) < 256:
		b = append(b, opShortBinUnicode, byte(len(s)))
	case protocol < 4 || len(s) <= math.MaxUint32:
		b = binary.LittleEndian.AppendUint32(append(b, opBinUnicode), uint32(len(s)))
	default:
		b = binary.LittleEndian.AppendUint64(append(b, opBinUnicode8), uint64(len(s)))
	}
	return append(b, s...)
}

// bytes writes bytes. Before protocol 3 it writes a call that encodes a string.
func (e *encoder) bytes(v []byte) {
	switch n := len(v); {
	case e.o.Protocol < 3:
		text := make([]rune, n)
		for i, c := range v {
			text[i] = rune(c)
		}
		e.reduce("_codecs", "encode", string(text), "latin1")
		return
	case n < 256:
		e.b = append(e.b, opShortBinBytes, byte(n))
	case e.o.Protocol < 4 || n <= math.MaxUint32:
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opBinBytes), uint32(n))
	default:
		e.b = binary.LittleEndian.AppendUint64(append(e.b, opBinBytes8), uint64(n))
	}
	e.b = append(e.b, v...)
}

// twosComplement returns the shortest little-endian bytes of n.
func twosComplement(n *big.Int) []byte {
	if n.Sign() == 0 {
		return nil
	}
	size := n.BitLen()/8 + 1
	v := n
	if n.Sign() < 0 {
		size = new(big.Int).Add(n, big.NewInt(1)).BitLen()/8 + 1
		v = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	b := v.FillBytes(make([]byte, size))
	slices.Reverse(b)
	return b
}
