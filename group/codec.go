package group

import "encoding/json"

// Codec turns values into bytes and back, for values that cross between ranks.
// Its methods must be safe for concurrent use: ranks in one process may share a
// codec, and rank 0 encodes and decodes the values of several ranks at once.
type Codec[T any] interface {
	// Encode returns the value's bytes, which the caller may keep but not
	// write to.
	Encode(v T) ([]byte, error)
	// Decode returns the value that b holds. It must not write to b, which may
	// be shared with other ranks; the value may refer to it.
	Decode(b []byte) (T, error)
}

// Func makes a [Codec] of two functions.
type Func[T any] struct {
	EncodeFunc func(T) ([]byte, error)
	DecodeFunc func([]byte) (T, error)
}

// Encode calls EncodeFunc.
func (f Func[T]) Encode(v T) ([]byte, error) { return f.EncodeFunc(v) }

// Decode calls DecodeFunc.
func (f Func[T]) Decode(b []byte) (T, error) { return f.DecodeFunc(b) }

// Bytes is the [Codec] of bytes as they are. Nothing is copied: what one rank
// decodes may be the slice that another encoded, so neither may write to it.
type Bytes struct{}

var _ Codec[[]byte] = Bytes{}

// Encode returns v.
func (Bytes) Encode(v []byte) ([]byte, error) { return v, nil }

// Decode returns b.
func (Bytes) Decode(b []byte) ([]byte, error) { return b, nil }

// JSON returns the codec of values as JSON.
func JSON[T any]() Codec[T] {
	return Func[T]{
		EncodeFunc: func(v T) ([]byte, error) { return json.Marshal(v) },
		DecodeFunc: func(b []byte) (v T, err error) {
			err = json.Unmarshal(b, &v)
			return v, err
		},
	}
}
