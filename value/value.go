// Package value encodes the small values of a state that are not tensors:
// numbers, strings, bytes, lists and maps of them, and Python's other values. It
// runs no code of the values' types except their own binary encoding and does not
// depend on checkpoints. The contract is at Encode and Decode: unlike plain JSON, the
// encoding keeps integers, floats and tuples apart, and NaN, infinities and bytes.
package value

import (
	"encoding"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"slices"
)

// The codecs: how the bytes of a value are to be understood.
const (
	// Raw are the caller's own bytes.
	Raw = "raw"
	// JSON is JSON with one more rule: an object with a single key that begins
	// with a dollar sign is a value that JSON lacks. Other keys that begin with
	// a dollar sign, and other contents, are errors.
	//
	//	{"$bytes": "…"}           bytes in base64
	//	{"$str": "…"}             a string with surrogates, its bytes in base64
	//	{"$float": "nan"}         a float; also "inf" and "-inf"
	//	{"$complex": [1.0, 0.5]}  a complex number; its parts are floats as above
	//	{"$map": [[k, v], …]}     a map with a key that is not UTF-8 or begins with a dollar sign
	//	{"$tuple": […]}           a Tuple
	//	{"$dict": [[k, v], …]}    a Dict; "$ordered" if it is Ordered
	//	{"$set": […]}             a Set; "$frozenset" if it is Frozen
	//	{"$tensor": {"dtype": "float32", "shape": [2, 3], "data": "…"}}
	//	                          a tensor, its contiguous little-endian bytes in base64
	//	{"$ref": "model.weight"}  a Ref: a tensor that the checkpoint holds by this name
	//	{"$object": {"module": "torch", "name": "Size", "call": true, "args": [[3, 4]]}}
	//	                          an Object; the fields call, new, args, kwargs,
	//	                          state, items and pairs are left out when empty
	JSON = "json"
)

// Errors of encoding and decoding.
var (
	// ErrValue reports a value that cannot be encoded.
	ErrValue = errors.New("value cannot be stored")
	// ErrEncoding reports bytes that are not a value in their codec.
	ErrEncoding = errors.New("malformed value")
	// ErrCodec reports a codec this package does not know.
	ErrCodec = errors.New("unknown codec")
)

// maxDepth bounds how deep values may nest.
const maxDepth = 256

// Encode encodes v and names the codec. Byte slices and values that marshal
// themselves by encoding.BinaryMarshaler are Raw. JSON are nil, booleans,
// integers, floats, complex numbers and strings; tensors; Tuple, *Dict, *Set,
// *Object and Ref; and pointers to, arrays, slices and maps by strings or integers
// of all those. A map by integers is stored as a Dict in the order of its keys.
// A nil pointer is nil, whatever its type.
//
// Anything else is an error that wraps ErrValue: a string that is neither UTF-8 nor UTF-8
// with Python's surrogates, a value nested deeper than 256, such as a value that contains
// itself, and a value with an encoding larger than 1 GiB.
func Encode(v any) (codec string, data []byte, err error) {
	switch v := v.(type) {
	case []byte:
		return Raw, append([]byte{}, v...), nil
	case encoding.BinaryMarshaler:
		if isNil(v) {
			break
		}
		data, err := v.MarshalBinary()
		if err != nil {
			return "", nil, fmt.Errorf("%w: %T: %w", ErrValue, v, err)
		}
		return Raw, append([]byte{}, data...), nil
	}

	var e encoder
	if e.value(reflect.ValueOf(v), 0); e.err != nil {
		return "", nil, e.err
	}
	return JSON, e.b, nil
}

func isNil(v any) bool {
	rv := reflect.ValueOf(v)
	return rv.Kind() == reflect.Pointer && rv.IsNil()
}

// Decode is the inverse of Encode. It returns nil, bool, int64, uint64 (beyond
// int64), *big.Int (beyond that), float64, complex128, string, []byte, []any,
// map[string]any, Tuple, *Dict, *Set, *Object, Ref or *tensor.Tensor, in memory of
// their own, in proportion to data. Bytes that are not a value in the codec are an
// error that wraps ErrEncoding, another codec is an error that wraps ErrCodec.
func Decode(codec string, data []byte) (any, error) {
	switch codec {
	case Raw:
		return append([]byte{}, data...), nil
	case JSON:
		return decodeJSON(data)
	}
	return nil, fmt.Errorf("%w: %q", ErrCodec, codec)
}

// DecodeLike decodes data into a value of the type of like, so that a state that held an int
// gets an int back. If the stored value does not fit that type without loss, it returns the
// result of [Decode]: the stored value replaces the one that was there. A Tuple fits a slice
// or an array as a list does. A Dict that is not Ordered fits a map with a key type that
// holds all of its keys.
//
// If the type of like, or a pointer to it, implements encoding.BinaryUnmarshaler, like gets
// Raw bytes by that; a non-nil pointer is filled in place.
func DecodeLike(codec string, data []byte, like any) (any, error) {
	if codec == Raw && like != nil {
		if u, v := unmarshaler(like); u != nil {
			if err := u.UnmarshalBinary(data); err != nil {
				return nil, fmt.Errorf("%w: %T: %w", ErrEncoding, u, err)
			}
			return v.Interface(), nil
		}
	}

	v, err := Decode(codec, data)
	if err != nil || v == nil || like == nil {
		return v, err
	}

	if c, ok := convert(reflect.ValueOf(v), reflect.TypeOf(like), 0); ok {
		return c.Interface(), nil
	}
	return v, nil
}

// unmarshaler returns the method that fills a value of the type of like, and that
// value. It returns nil if the type has no such method.
func unmarshaler(like any) (encoding.BinaryUnmarshaler, reflect.Value) {
	rv := reflect.ValueOf(like)
	t := rv.Type()
	if u, ok := like.(encoding.BinaryUnmarshaler); ok && t.Kind() == reflect.Pointer {
		if rv.IsNil() {
			rv = reflect.New(t.Elem())
			u = rv.Interface().(encoding.BinaryUnmarshaler)
		}
		return u, rv
	}

	p := reflect.New(t)
	u, _ := p.Interface().(encoding.BinaryUnmarshaler)
	return u, p.Elem()
}

var (
	bigInt      = reflect.TypeFor[*big.Int]()
	byteSlice   = reflect.TypeFor[[]byte]()
	dictPointer = reflect.TypeFor[*Dict]()
	nilable     = []reflect.Kind{reflect.Interface, reflect.Pointer, reflect.Map, reflect.Slice}
)

// convert returns v as a t if that is possible without loss.
func convert(v reflect.Value, t reflect.Type, depth int) (reflect.Value, bool) {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}

	none := reflect.Value{}
	switch {
	case depth > maxDepth: // a type of pointers to itself
		return none, false
	case !v.IsValid():
		return reflect.Zero(t), slices.Contains(nilable, t.Kind())
	case t.Kind() == reflect.Interface:
		return v, v.Type().Implements(t)
	case v.Type().AssignableTo(t):
		return v.Convert(t), true
	case t == bigInt && v.CanInt():
		return reflect.ValueOf(big.NewInt(v.Int())), true
	case t == bigInt && v.CanUint():
		return reflect.ValueOf(new(big.Int).SetUint64(v.Uint())), true
	case t.Kind() == reflect.Pointer:
		return convertPointer(v, t, depth)
	case v.Type() == byteSlice && (t.Kind() != reflect.Slice || t.Elem().Kind() != reflect.Uint8):
		return none, false
	case t.Kind() == reflect.Slice && v.Kind() == reflect.Slice:
		out := reflect.MakeSlice(t, v.Len(), v.Len())
		return out, fillList(out, v, depth)
	case t.Kind() == reflect.Array && v.Kind() == reflect.Slice && t.Len() == v.Len():
		out := reflect.New(t).Elem()
		return out, fillList(out, v, depth)
	case t.Kind() == reflect.Map && v.Type() == dictPointer:
		return convertDict(v.Interface().(*Dict), t, depth)
	case t.Kind() == reflect.Map && v.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		return convertMap(v, t, depth)
	case t.Kind() == v.Kind() && (t.Kind() == reflect.String || t.Kind() == reflect.Bool):
		return v.Convert(t), true
	}

	return convertNumber(v, t)
}

func convertPointer(v reflect.Value, t reflect.Type, depth int) (reflect.Value, bool) {
	e, ok := convert(v, t.Elem(), depth+1)
	if !ok {
		return v, false
	}
	out := reflect.New(t.Elem())
	out.Elem().Set(e)
	return out.Convert(t), true
}

// convertNumber returns the integer, float or complex number v as a t.
func convertNumber(v reflect.Value, t reflect.Type) (reflect.Value, bool) {
	out := reflect.New(t).Elem()
	switch {
	case out.CanInt() && v.CanInt() && !out.OverflowInt(v.Int()):
		out.SetInt(v.Int())
	case out.CanUint() && v.CanInt() && v.Int() >= 0 && !out.OverflowUint(uint64(v.Int())):
		out.SetUint(uint64(v.Int()))
	case out.CanUint() && v.CanUint() && !out.OverflowUint(v.Uint()):
		out.SetUint(v.Uint())
	case out.CanFloat() && v.CanFloat() && fitsFloat(t, v.Float()):
		out.SetFloat(v.Float())
	case out.CanFloat() && v.CanInt() && -1<<53 <= v.Int() && v.Int() <= 1<<53 && fitsFloat(t, float64(v.Int())):
		out.SetFloat(float64(v.Int()))
	case out.CanComplex() && v.CanComplex() && fitsFloat(t, real(v.Complex())) && fitsFloat(t, imag(v.Complex())):
		out.SetComplex(v.Complex())
	default:
		return out, false
	}

	return out, true
}

// fitsFloat reports whether a float, or a part of a complex number, of type t can
// hold f exactly.
func fitsFloat(t reflect.Type, f float64) bool {
	k := t.Kind()
	return k == reflect.Float64 || k == reflect.Complex128 || f != f || float64(float32(f)) == f
}

func fillList(out, v reflect.Value, depth int) bool {
	for i := range v.Len() {
		e, ok := convert(v.Index(i), out.Type().Elem(), depth+1)
		if !ok {
			return false
		}
		out.Index(i).Set(e)
	}
	return true
}

func convertMap(v reflect.Value, t reflect.Type, depth int) (reflect.Value, bool) {
	out := reflect.MakeMapWithSize(t, v.Len())
	for k, e := range v.Seq2() {
		c, ok := convert(e, t.Elem(), depth+1)
		if !ok {
			return out, false
		}
		out.SetMapIndex(k.Convert(t.Key()), c)
	}
	return out, true
}

// convertDict returns d as the map t. The keys of t must be of a basic type: these compare as
// in Python.
func convertDict(d *Dict, t reflect.Type, depth int) (reflect.Value, bool) {
	k := t.Key().Kind()
	if d.Ordered || (k > reflect.Complex128 && k != reflect.String) {
		return reflect.Value{}, false
	}

	out := reflect.MakeMapWithSize(t, len(d.Pairs))
	for _, p := range d.Pairs {
		k, okKey := convert(reflect.ValueOf(p.Key), t.Key(), depth+1)
		e, ok := convert(reflect.ValueOf(p.Value), t.Elem(), depth+1)
		if !ok || !okKey {
			return out, false
		}
		out.SetMapIndex(k, e)
	}

	return out, out.Len() == len(d.Pairs)
}
