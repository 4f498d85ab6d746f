package pickle

import "github.com/cairn-ckpt/cairn/value"

// DecodeOptions tell Decode what its caller knows. Nil: nothing.
type DecodeOptions struct {
	// Persistent returns the value that a persistent id stands for. Nil:
	// persistent ids are refused with ErrPersistent.
	Persistent func(id any) (any, error)
	// Construct makes values of the calls that a pickle asks for, by the
	// qualified name of what is called, such as
	// "torch._utils._rebuild_tensor_v2". A call of any other name becomes an
	// inert record.
	Construct map[string]func(args value.Tuple, kwargs map[string]any) (any, error)
	// Limits bound the work. Nil: the defaults of Limits.
	Limits *Limits
}

// Limits bound what a pickle may ask for. A zero field means its default.
type Limits struct {
	// Depth bounds how deeply values lie in each other. Zero: 1000.
	Depth int
	// Memo bounds the entries of the memo. Zero: 16 Mi.
	Memo int
	// Objects bounds the number of values made. Zero: 64 Mi.
	Objects int
	// Bytes bounds the memory of what is made, roughly. Zero: 16 GiB.
	Bytes int64
}

// Decode decodes the one pickle that data holds.
func Decode(data []byte, o *DecodeOptions) (any, error) {
	v, n, err := DecodePrefix(data, o)
	if err == nil && n != len(data) {
		return nil, ErrMalformed
	}
	return v, err
}

// DecodePrefix decodes the pickle that data begins with and returns how many
// bytes it takes.
func DecodePrefix(data []byte, o *DecodeOptions) (v any, n int, err error) {
	return nil, 0, ErrMalformed
}
