// Package value encodes the small values of a state that are no tensors:
// numbers, strings, bytes, lists and maps of them, and what Python has beyond
// those. It runs no code of the values' types beyond their own binary encoding
// and knows nothing of checkpoints. The contract is at Encode and Decode: the
// encoding keeps what JSON loses, so that integers stay integers, floats stay
// floats, tuples stay tuples, and NaN, the infinities and bytes survive.
package value

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
)

// The codecs: how the bytes of a value are to be understood.
const (
	// Raw are the caller's own bytes.
	Raw = "raw"
	// JSON is JSON with one rule more: an object with a single key that begins
	// with a dollar sign is a value that JSON lacks. A "$" object with another
	// key than these, or with another content, is no value.
	//
	//	{"$bytes": "…"}           bytes in base64
	//	{"$str": "…"}             a string with surrogates, its bytes in base64
	//	{"$float": "nan"}         a float; also "inf" and "-inf"
	//	{"$complex": [1.0, 0.5]}  a complex number; its parts are floats as above
	//	{"$map": [[k, v], …]}     a map with a key that is no UTF-8 or begins with a dollar sign
	//	{"$tuple": […]}           a Tuple
	//	{"$dict": [[k, v], …]}    a Dict; "$ordered" where it is Ordered
	//	{"$set": […]}             a Set; "$frozenset" where it is Frozen
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
// Anything else is an error that wraps ErrValue: a string that is neither UTF-8
// nor such with surrogates as Python has them, a value
// nested deeper than 256, as one that contains itself is, and one whose
// encoding is larger than 1 GiB.
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
	data, err = appendValue(nil, reflect.ValueOf(v), 0)
	if err != nil {
		return "", nil, err
	}
	return JSON, data, nil
}

func isNil(v any) bool {
	rv := reflect.ValueOf(v)
	return rv.Kind() == reflect.Pointer && rv.IsNil()
}

// Decode is the inverse of Encode. It returns nil, bool, int64, uint64 (beyond
// int64), *big.Int (beyond that), float64, complex128, string, []byte, []any,
// map[string]any, Tuple, *Dict, *Set, *Object, Ref or *tensor.Tensor, in memory of
// their own, which is at most in proportion to data. Bytes that are no value in
// the codec are an error that wraps ErrEncoding, another codec one that wraps
// ErrCodec.
func Decode(codec string, data []byte) (any, error) {
	switch codec {
	case Raw:
		return append([]byte{}, data...), nil
	case JSON:
		return decodeJSON(data)
	}
	return nil, fmt.Errorf("%w: %q", ErrCodec, codec)
}
