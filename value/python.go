package value

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/tensor"
)

// The types below stand for values of Python that Go has no type for. A list of
// Python is a []any, a dict whose keys are all strings a map[string]any, an int
// an int64, uint64 or *big.Int, a complex number a complex128, bytes are a
// []byte, and a tensor inside of a value is a *tensor.Tensor. A str is a string
// in UTF-8; the surrogates that a str of Python may hold, and Unicode text may
// not, are in it as three bytes each, as Python's error handler "surrogatepass"
// writes them.

// Tuple is a tuple of Python.
type Tuple []any

// Pair is a key of a dict and what it leads to.
type Pair struct {
	Key, Value any
}

// Dict is a dict of Python that is not a map[string]any: one with other keys than
// strings, or one that promises an order.
type Dict struct {
	// Pairs are in the order of their insertion. No key is twice there.
	Pairs []Pair
	// Ordered says that it is a collections.OrderedDict.
	Ordered bool
}

// Set is a set of Python.
type Set struct {
	// Items are in the order in which they were stored.
	Items []any
	// Frozen says that it is a frozenset.
	Frozen bool
}

// Object is an object of Python that was stored by the name of its class or of
// a function that makes it: torch.bfloat16, torch.Size([3, 4]), a datetime, or
// an instance of a class. It is a record and nothing else: neither
// this package nor any other looks up the name or calls anything.
type Object struct {
	// Module and Name are those of the class, or function, or thing itself.
	Module, Name string
	// Call says that the object is what calling the name with Args gives;
	// otherwise it is what the name stands for, such as torch.bfloat16, and
	// everything below is empty.
	Call bool
	// New says that Args went to the class's __new__ rather than to a call. It
	// matters only to a writer of pickles.
	New  bool
	Args Tuple
	// Kwargs are the arguments with names.
	Kwargs map[string]any
	// State is what the object was given after it was made, or nil.
	State any
	// Items and Pairs are what was appended to it and set in it.
	Items []any
	Pairs []Pair
}

// QualifiedName returns the module and the name with a dot between them.
func (o *Object) QualifiedName() string {
	if o.Module == "" {
		return o.Name
	}
	return o.Module + "." + o.Name
}

// Ref stands for a tensor that a value holds and that is stored beside it, under
// a name of its own. Values of torch.save files refer to their tensors in this
// way, so that a large model is not read as part of the object around it.
type Ref struct {
	// FQN is the name of the tensor in the checkpoint.
	FQN string
}

var (
	tupleType = reflect.TypeFor[Tuple]()
	refType   = reflect.TypeFor[Ref]()
)

// appendWrapped adds an object whose only key leads to the list v.
func appendWrapped(b []byte, key string, v reflect.Value, depth int) ([]byte, error) {
	b, err := appendList(append(b, `{"`+key+`":`...), v, depth)
	return append(b, '}'), err
}

func appendDict(b []byte, d *Dict, depth int) ([]byte, error) {
	key := keyDict
	if d.Ordered {
		key = keyOrdered
	}
	b, err := appendPairs(append(b, `{"`+key+`":`...), d.Pairs, depth)
	return append(b, '}'), err
}

func appendPairs(b []byte, pairs []Pair, depth int) ([]byte, error) {
	b = append(b, '[')
	for i, p := range pairs {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendList(b, reflect.ValueOf([]any{p.Key, p.Value}), depth); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func isInteger(t reflect.Type) bool {
	zero := reflect.Zero(t)
	return zero.CanInt() || zero.CanUint()
}

// appendIntMap adds a map with integer keys as the dict that Python would have.
func appendIntMap(b []byte, v reflect.Value, depth int) ([]byte, error) {
	d := &Dict{Pairs: make([]Pair, 0, v.Len())}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		if a.CanInt() {
			return cmp.Compare(a.Int(), b.Int())
		}
		return cmp.Compare(a.Uint(), b.Uint())
	})
	for _, k := range keys {
		d.Pairs = append(d.Pairs, Pair{k.Interface(), v.MapIndex(k).Interface()})
	}
	return appendDict(b, d, depth)
}

func appendSet(b []byte, s *Set, depth int) ([]byte, error) {
	key := keySet
	if s.Frozen {
		key = keyFrozenset
	}
	return appendWrapped(b, key, reflect.ValueOf(s.Items), depth)
}

func appendTensor(b []byte, t *tensor.Tensor) ([]byte, error) {
	if !t.DType().Valid() {
		return nil, fmt.Errorf("%w: a tensor of dtype %v", ErrValue, t.DType())
	}
	if err := room(b, t.NumBytes()); err != nil { // before an expanded view becomes as large as it says
		return nil, err
	}
	b = append(b, `{"`+keyTensor+`":{"dtype":"`+t.DType().String()+`","shape":[`...)
	for i, n := range t.Shape() {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return appendBase64(append(b, `],"data":`...), t.Contents(), "}}")
}

// The fields of an object, in the order in which they are written. Those that
// are empty are left out, apart from the first two.
const (
	fieldModule = "module"
	fieldName   = "name"
	fieldCall   = "call"
	fieldNew    = "new"
	fieldArgs   = "args"
	fieldKwargs = "kwargs"
	fieldState  = "state"
	fieldItems  = "items"
	fieldPairs  = "pairs"
)

func appendObject(b []byte, o *Object, depth int) ([]byte, error) {
	b, err := appendString(append(b, `{"`+keyObject+`":{"`+fieldModule+`":`...), o.Module)
	if err != nil {
		return nil, err
	}
	if b, err = appendString(append(b, `,"`+fieldName+`":`...), o.Name); err != nil {
		return nil, err
	}
	if o.Call {
		b = append(b, `,"`+fieldCall+`":true`...)
	}
	if o.New {
		b = append(b, `,"`+fieldNew+`":true`...)
	}
	if b, err = appendContents(b, o, depth); err != nil {
		return nil, err
	}
	return append(b, "}}"...), nil
}

// appendContents adds the fields of an object that hold other values.
func appendContents(b []byte, o *Object, depth int) (_ []byte, err error) {
	if len(o.Args) > 0 {
		if b, err = appendList(append(b, `,"`+fieldArgs+`":`...), reflect.ValueOf(o.Args), depth); err != nil {
			return nil, err
		}
	}
	if len(o.Kwargs) > 0 {
		if b, err = appendMap(append(b, `,"`+fieldKwargs+`":`...), reflect.ValueOf(o.Kwargs), depth); err != nil {
			return nil, err
		}
	}
	if o.State != nil {
		if b, err = appendValue(append(b, `,"`+fieldState+`":`...), reflect.ValueOf(o.State), depth+1); err != nil {
			return nil, err
		}
	}
	if len(o.Items) > 0 {
		if b, err = appendList(append(b, `,"`+fieldItems+`":`...), reflect.ValueOf(o.Items), depth); err != nil {
			return nil, err
		}
	}
	if len(o.Pairs) > 0 {
		return appendPairs(append(b, `,"`+fieldPairs+`":`...), o.Pairs, depth)
	}
	return b, nil
}

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
