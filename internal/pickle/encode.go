package pickle

import (
	"encoding/binary"
	"fmt"
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
func Encode(v any, o *EncodeOptions) ([]byte, error) {
	e, err := newEncoder(o)
	if err != nil {
		return nil, err
	}
	if err := e.value(v, 0); err != nil {
		return nil, err
	}
	return append(e.b, opStop), nil
}

type encoder struct {
	o       EncodeOptions
	b       []byte
	next    int // the next memo number
	strs    map[string]int
	globals map[[2]string]int
	seen    map[identity]int // memo numbers of shared containers
}

func newEncoder(o *EncodeOptions) (*encoder, error) {
	e := &encoder{strs: map[string]int{}, globals: map[[2]string]int{}, seen: map[identity]int{}}
	if o != nil {
		e.o = *o
	}
	if e.o.Protocol == 0 {
		e.o.Protocol = 4
	}
	if e.o.Protocol < 2 || e.o.Protocol > maxProtocol {
		return nil, fmt.Errorf("%w: protocol %d", ErrUnsupported, e.o.Protocol)
	}
	e.b = append(e.b, opProto, byte(e.o.Protocol))
	return e, nil
}

// open marks a container that is being written.
const open = -1

func (e *encoder) value(v any, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: nested deeper than %d", ErrLimit, maxDepth)
	}
	if e.o.Replace != nil {
		if r, ok := e.o.Replace(v); ok {
			v = r
		}
	}
	if e.scalar(v) {
		return nil
	}
	switch v := v.(type) {
	case string:
		return e.str(v)
	case []byte:
		return e.bytes(v)
	case complex128:
		return e.reduce("builtins", "complex", real(v), imag(v))
	case packedDType:
		return e.call(v.Object, identity{}, depth)
	case PersistentID:
		if err := e.value(v.ID, depth+1); err != nil {
			return err
		}
		e.b = append(e.b, opBinPersID)
		return nil
	}
	return e.shared(v, depth)
}

// shared writes a container, or a reference to it if it was written before.
func (e *encoder) shared(v any, depth int) error {
	id, ok := identify(v)
	if !ok {
		return e.container(v, id, depth)
	}
	n, ok := e.seen[id]
	if ok && n == open {
		return ErrCycle
	}
	if ok {
		e.get(n)
		return nil
	}
	e.seen[id] = open
	return e.container(v, id, depth)
}

// container writes v, whose identity is id.
func (e *encoder) container(v any, id identity, depth int) error {
	switch v := v.(type) {
	case value.Tuple:
		return e.tuple(v, id, depth)
	case []any:
		return e.list(v, id, depth)
	case map[string]any:
		return e.stringMap(v, id, depth)
	case *value.Dict:
		return e.dict(v, id, depth)
	case *value.Set:
		return e.set(v, id, depth)
	case *value.Object:
		return e.object(v, id, depth)
	}
	return e.reflected(v, depth)
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
func (e *encoder) global(module, name string) error {
	key := [2]string{module, name}
	if n, ok := e.globals[key]; ok {
		e.get(n)
		return nil
	}
	if strings.ContainsAny(module+name, "\n\r") || name == "" || !validWTF8([]byte(module+name)) {
		return fmt.Errorf("%w: the name %.40q of %.40q", ErrUnsupported, name, module)
	}
	e.nameOf(module, name)
	e.globals[key] = e.put()
	return nil
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
func (e *encoder) reduce(module, name string, args ...any) error {
	if err := e.global(module, name); err != nil {
		return err
	}
	if err := e.tuple(args, identity{}, maxDepth-2); err != nil {
		return err
	}
	e.b = append(e.b, opReduce)
	return nil
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

func (e *encoder) tuple(t []any, id identity, depth int) error {
	if len(t) == 0 {
		e.b = append(e.b, opEmptyTuple)
		return nil
	}
	if len(t) > 3 {
		e.b = append(e.b, opMark)
	}
	for _, v := range t {
		if err := e.value(v, depth+1); err != nil {
			return err
		}
	}
	if len(t) > 3 {
		e.b = append(e.b, opTuple)
	} else {
		e.b = append(e.b, opTuple1+byte(len(t)-1))
	}
	if id != (identity{}) {
		e.done(id, e.put())
	}
	return nil
}

func (e *encoder) list(l []any, id identity, depth int) error {
	e.b = append(e.b, opEmptyList)
	n := e.put()
	if err := e.appends(l, depth); err != nil {
		return err
	}
	e.done(id, n)
	return nil
}

// appends writes the opcodes that append items to the list or object on the
// stack.
func (e *encoder) appends(l []any, depth int) error {
	for part := range slices.Chunk(l, batch) {
		e.b = append(e.b, opMark)
		for _, v := range part {
			if err := e.value(v, depth+1); err != nil {
				return err
			}
		}
		e.b = append(e.b, opAppends)
	}
	return nil
}

func (e *encoder) stringMap(m map[string]any, id identity, depth int) error {
	e.b = append(e.b, opEmptyDict)
	n := e.put()
	p := make([]value.Pair, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		p = append(p, value.Pair{Key: k, Value: m[k]})
	}
	if err := e.setItems(p, depth); err != nil {
		return err
	}
	e.done(id, n)
	return nil
}

// setItems writes the opcodes that set items in the dict or object on the stack.
func (e *encoder) setItems(p []value.Pair, depth int) error {
	for part := range slices.Chunk(p, batch) {
		e.b = append(e.b, opMark)
		for _, kv := range part {
			if err := e.value(kv.Key, depth+1); err != nil {
				return err
			}
			if err := e.value(kv.Value, depth+1); err != nil {
				return err
			}
		}
		e.b = append(e.b, opSetItems)
	}
	return nil
}

func (e *encoder) dict(d *value.Dict, id identity, depth int) error {
	if d == nil {
		e.b = append(e.b, opNone)
		return nil
	}
	if d.Ordered {
		if err := e.reduce("collections", "OrderedDict"); err != nil {
			return err
		}
	} else {
		e.b = append(e.b, opEmptyDict)
	}
	n := e.put()
	if err := e.setItems(d.Pairs, depth); err != nil {
		return err
	}
	e.done(id, n)
	return nil
}

func (e *encoder) set(s *value.Set, id identity, depth int) error {
	if s == nil {
		e.b = append(e.b, opNone)
		return nil
	}
	if e.o.Protocol < 4 {
		return e.setByCall(s, id, depth)
	}
	n := open
	if !s.Frozen {
		e.b = append(e.b, opEmptySet)
		n = e.put()
	}
	e.b = append(e.b, opMark)
	for _, v := range s.Items {
		if err := e.value(v, depth+1); err != nil {
			return err
		}
	}
	if s.Frozen {
		e.b = append(e.b, opFrozenSet)
		n = e.put()
	} else {
		e.b = append(e.b, opAddItems)
	}
	e.done(id, n)
	return nil
}

// setByCall writes a set for protocols without opcodes for sets.
func (e *encoder) setByCall(s *value.Set, id identity, depth int) error {
	name := "set"
	if s.Frozen {
		name = "frozenset"
	}
	if err := e.global("builtins", name); err != nil {
		return err
	}
	if err := e.tuple([]any{append([]any{}, s.Items...)}, identity{}, depth); err != nil {
		return err
	}
	e.b = append(e.b, opReduce)
	e.done(id, e.put())
	return nil
}

// reflected writes Go's own numbers, slices and maps.
func (e *encoder) reflected(v any, depth int) error {
	rv := reflect.ValueOf(v)
	switch {
	case rv.CanInt():
		e.int(rv.Int())
		return nil
	case rv.CanUint():
		e.scalar(rv.Uint())
		return nil
	case rv.CanFloat():
		e.scalar(rv.Float())
		return nil
	case rv.Kind() == reflect.Slice:
		l := make([]any, rv.Len())
		for i := range l {
			l[i] = rv.Index(i).Interface()
		}
		return e.list(l, identity{}, depth)
	case rv.Kind() == reflect.Map && rv.Type().Key().Kind() == reflect.String:
		m := make(map[string]any, rv.Len())
		for k, x := range rv.Seq2() {
			m[k.String()] = x.Interface()
		}
		return e.stringMap(m, identity{}, depth)
	}
	return fmt.Errorf("%w: a value of type %T", ErrUnsupported, v)
}

// object writes a name or a call.
func (e *encoder) object(o *value.Object, id identity, depth int) error {
	if o == nil {
		e.b = append(e.b, opNone)
		return nil
	}
	delete(e.seen, id) // names are not containers; call sets the mark again
	if !o.Call {
		return e.name(o)
	}
	e.seen[id] = open
	raw, err := denormal(o)
	if err != nil {
		return err
	}
	if raw != o { // the names of our own packed forms are always allowed
		return e.call(raw, id, depth)
	}
	if err := e.permit(o.Module, o.Name); err != nil {
		return err
	}
	return e.call(o, id, depth)
}

// permit returns an error unless the name may be written.
func (e *encoder) permit(module, name string) error {
	if Known(module, name) || e.o.Allow != nil && e.o.Allow(module, name) {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnknownClass, (&value.Object{Module: module, Name: name}).QualifiedName())
}

func (e *encoder) name(o *value.Object) error {
	if o.Module == "torch" && layouts[o.Name] {
		return e.reduce("torch.serialization", "_get_layout", "torch."+o.Name)
	}
	if err := e.permit(o.Module, o.Name); err != nil {
		return err
	}
	return e.global(o.Module, o.Name)
}

// call writes a call, then the state and the items of its result.
func (e *encoder) call(o *value.Object, id identity, depth int) error {
	if err := e.invoke(o, depth); err != nil {
		return err
	}
	n := e.put()
	if err := e.appends(o.Items, depth); err != nil {
		return err
	}
	if err := e.setItems(o.Pairs, depth); err != nil {
		return err
	}
	if o.State != nil {
		if err := e.value(o.State, depth+1); err != nil {
			return err
		}
		e.b = append(e.b, opBuild)
	}
	e.done(id, n)
	return nil
}

// invoke writes the call itself.
func (e *encoder) invoke(o *value.Object, depth int) error {
	if len(o.Kwargs) > 0 {
		return e.invokeNamed(o, depth)
	}
	if err := e.global(o.Module, o.Name); err != nil {
		return err
	}
	if err := e.tuple(o.Args, identity{}, depth); err != nil {
		return err
	}
	op := byte(opReduce)
	if o.New {
		op = opNewObj
	}
	e.b = append(e.b, op)
	return nil
}

// invokeNamed writes a call with named arguments, which only __new__ can have.
func (e *encoder) invokeNamed(o *value.Object, depth int) error {
	if !o.New {
		return fmt.Errorf("%w: %s called with named arguments", ErrUnsupported, o.QualifiedName())
	}
	if e.o.Protocol < 4 {
		if err := e.global("copyreg", "__newobj_ex__"); err != nil {
			return err
		}
	}
	if err := e.global(o.Module, o.Name); err != nil {
		return err
	}
	if err := e.tuple(o.Args, identity{}, depth); err != nil {
		return err
	}
	if err := e.stringMap(o.Kwargs, identity{}, depth); err != nil {
		return err
	}
	if e.o.Protocol < 4 {
		e.b = append(e.b, opTuple3, opReduce)
		return nil
	}
	e.b = append(e.b, opNewObjEx)
	return nil
}

// denormal returns an object in the form in which Python pickles it. It returns o
// itself if that is the normal form.
func denormal(o *value.Object) (*value.Object, error) {
	switch {
	case o.Module == "datetime":
		return packDateTime(o)
	case o.Module == "numpy":
		return packNumpy(o)
	}
	return o, nil
}

func badForm(o *value.Object) error {
	return fmt.Errorf("%w: a %s with these arguments", ErrUnsupported, o.QualifiedName())
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
func (e *encoder) str(s string) error {
	if n, ok := e.strs[s]; ok {
		e.get(n)
		return nil
	}
	if !utf8.ValidString(s) && !validWTF8([]byte(s)) {
		return fmt.Errorf("%w: string %.40q is not UTF-8", ErrUnsupported, s)
	}
	e.b = appendStr(e.b, s, e.o.Protocol)
	e.strs[s] = e.put()
	return nil
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
func (e *encoder) bytes(v []byte) error {
	switch n := len(v); {
	case e.o.Protocol < 3:
		text := make([]rune, n)
		for i, c := range v {
			text[i] = rune(c)
		}
		return e.reduce("_codecs", "encode", string(text), "latin1")
	case n < 256:
		e.b = append(e.b, opShortBinBytes, byte(n))
	case e.o.Protocol < 4 || n <= math.MaxUint32:
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opBinBytes), uint32(n))
	default:
		e.b = binary.LittleEndian.AppendUint64(append(e.b, opBinBytes8), uint64(n))
	}
	e.b = append(e.b, v...)
	return nil
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
