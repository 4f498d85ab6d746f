package value

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/tensor"
)

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
