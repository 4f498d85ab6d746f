package pickle

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/value"
)

// Construct makes the value of a call that a pickle asks for.
type Construct = func(args value.Tuple, kwargs map[string]any) (any, error)

// DecodeOptions tell Decode what its caller knows. Nil: nothing.
type DecodeOptions struct {
	// Persistent returns the value that a persistent id stands for. Nil:
	// persistent ids are refused with ErrPersistent. It is asked once for each
	// place in the pickle that is not shared. The ids that PyTorch's old stream
	// has for the classes of modules become those classes.
	Persistent func(id any) (any, error)
	// Construct makes values of the calls that a pickle asks for, by the
	// qualified name of what is called, such as
	// "torch._utils._rebuild_tensor_v2". A call of any other name becomes an
	// inert record. What it returns is taken as it is, but must hold no value
	// of package value that contains itself.
	Construct map[string]func(args value.Tuple, kwargs map[string]any) (any, error)
	// Limits bound the work. Nil: the defaults of Limits.
	Limits *Limits
}

// Decode returns the value of the one pickle that data holds: nil, bool, int64,
// uint64 (beyond int64), *big.Int (beyond that), float64, complex128, string,
// []byte, []any, map[string]any (a dict whose keys are all strings), and the
// types of package value. Everything that has a name is a *value.Object in its
// normal form, unless o.Construct knows better; it is never
// looked up.
//
// Parts that are shared in the pickle are shared in the value, so callers must
// not change it. A pickle of a value that contains itself is an error that wraps
// ErrCycle; one that would take too much to build or to walk over wraps
// ErrLimit; all others wrap ErrMalformed, ErrUnsupported or ErrPersistent, or
// come from the functions in o. Strings with surrogates keep them as three bytes
// each, which is no UTF-8. Attributes that were set on an OrderedDict are
// dropped.
func Decode(data []byte, o *DecodeOptions) (any, error) {
	v, n, err := DecodePrefix(data, o)
	if err != nil {
		return nil, err
	}
	if n != len(data) {
		return nil, fmt.Errorf("%w: %d bytes after its end", ErrMalformed, len(data)-n)
	}
	return v, nil
}

// DecodePrefix is Decode for a pickle that other bytes follow. It returns how
// many bytes the pickle takes.
func DecodePrefix(data []byte, o *DecodeOptions) (v any, n int, err error) {
	if o == nil {
		o = new(DecodeOptions)
	}
	g, n, err := Parse(data, nil, o.Limits)
	if err != nil {
		return nil, 0, err
	}
	v, err = g.Value(g.Root, o)
	if err != nil {
		return nil, 0, err
	}
	return v, n, nil
}
