package pickle

import (
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/value"
)

// EncodeOptions tell Encode how to write. Nil: the defaults.
type EncodeOptions struct {
	// Protocol is that of the pickle, 2 to 5. Zero: 4.
	Protocol int
	// Replace is asked first for each value: it returns what to encode instead,
	// and true. Nil, or false: the value itself.
	Replace func(v any) (any, bool)
	// Allow reports whether a name beyond the known plain ones may be written.
	// Nil: none.
	Allow func(module, name string) bool
}

// PersistentID encodes as a persistent id.
type PersistentID struct{ ID any }

// maxDepth bounds how deeply encoded values nest.
const maxDepth = 1000

// Encode returns the pickle of v, which Python loads as an object that equals
// what v describes: v may be made of all that Decode returns, Go's other
// integers and floats, slices and maps with string keys, and PersistentID.
// Objects in their normal form are written as Python pickles them. Parts that v shares by reference are written once.
//
// A class that is neither Known nor allowed is an error that wraps
// ErrUnknownClass and names it, a type of Go that has no counterpart one that
// wraps ErrUnsupported, a value that contains itself ErrCycle, and one that
// nests too deeply ErrLimit. Equal values give equal bytes.
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

// encoder writes one pickle.
type encoder struct {
	o       EncodeOptions
	b       []byte
	next    int // the next number of the memo
	strs    map[string]int
	globals map[[2]string]int
	seen    map[identity]int // the numbers of shared containers
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

// shared writes a container, or a reference to it where it was written before.
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

// container writes v, which is known as id.
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

// done notes that the container id was written and has the memo's number n.
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

// global writes a name. The older protocols write it as lines, so a name with an
// end of line would let whoever chose it write opcodes.
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

// nameOf writes a name without a look at the memo.
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

// reduce writes the call of a name that needs no permission, with arguments that
// nest no further.
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
