// Package value encodes the small values of a state that are no tensors:
// numbers, strings, bytes, lists and maps of them. It runs no code of the
// values' types beyond their own binary encoding and knows nothing of
// checkpoints. The encoding keeps what JSON loses: integers stay integers,
// floats stay floats, NaN and the infinities survive.
package value

import (
	"encoding"
	"errors"
	"fmt"
)

// The codecs: how the bytes of a value are to be understood.
const (
	// Raw are the caller's own bytes.
	Raw = "raw"
	// JSON is JSON with one rule more: an object with a single key that begins
	// with a dollar sign is a value that JSON lacks.
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
// themselves by encoding.BinaryMarshaler are Raw; nil, booleans, numbers,
// strings, and slices and string-keyed maps of those are JSON. Anything else is
// an error that wraps ErrValue.
func Encode(v any) (codec string, data []byte, err error) {
	switch v := v.(type) {
	case []byte:
		return Raw, append([]byte{}, v...), nil
	case encoding.BinaryMarshaler:
		data, err := v.MarshalBinary()
		if err != nil {
			return "", nil, fmt.Errorf("%w: %w", ErrValue, err)
		}
		return Raw, append([]byte{}, data...), nil
	}
	data, err = appendJSON(nil, v)
	return JSON, data, err
}

// Decode is the inverse of Encode. It returns nil, bool, int64, uint64 (beyond
// int64), *big.Int (beyond that), float64, string, []byte, []any or
// map[string]any.
func Decode(codec string, data []byte) (any, error) {
	switch codec {
	case Raw:
		return append([]byte{}, data...), nil
	case JSON:
		return decodeJSON(data)
	}
	return nil, fmt.Errorf("%w: %q", ErrCodec, codec)
}
