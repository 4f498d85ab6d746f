// Package value encodes the small values of a state that are no tensors:
// numbers, strings, bytes, lists and maps of them. It runs no code of the
// values' types beyond their own binary encoding and knows nothing of
// checkpoints. The contract is at Encode and Decode: the encoding keeps what
// JSON loses, so that integers stay integers, floats stay floats, and NaN, the
// infinities and bytes survive.
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
	// with a dollar sign is a value that JSON lacks. {"$bytes": "…"} are bytes
	// in base64, {"$float": "nan"}, "inf" and "-inf" are floats, {"$map": [[k,
	// v], …]} is a map with a key that begins with a dollar sign.
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

// maxDepth bounds how deep lists and maps may nest.
const maxDepth = 256

// Encode encodes v and names the codec. Byte slices and values that marshal
// themselves by encoding.BinaryMarshaler are Raw; nil, booleans, integers,
// floats, strings, and pointers to, arrays, slices and string-keyed maps of
// those are JSON. A nil pointer is nil, whatever its type. Anything else is an
// error that wraps ErrValue; so is a value that is nested deeper than 256, as
// one that contains itself is.
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
// int64), *big.Int (beyond that), float64, string, []byte, []any or
// map[string]any, in memory of their own. Bytes that are no value in the codec
// are an error that wraps ErrEncoding, another codec one that wraps ErrCodec.
func Decode(codec string, data []byte) (any, error) {
	switch codec {
	case Raw:
		return append([]byte{}, data...), nil
	case JSON:
		return decodeJSON(data)
	}
	return nil, fmt.Errorf("%w: %q", ErrCodec, codec)
}
