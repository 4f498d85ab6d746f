// Package pickle reads and writes Python's pickles without Python. It builds plain data of
// package value and never looks up, imports or calls the names in a pickle. It does not
// depend on checkpoints: callers describe the classes that matter to them. The contract is at
// Decode and Encode.
//
// # Normal form
//
// Objects of well-known classes have one form, however Python pickled them, so that
// they can be printed, compared and written. Encode writes them back as Python does.
//
//	torch.bfloat16, torch.strided, …  the name only, Call not set; also layouts and
//	                                  memory formats, which pickles create with
//	                                  a function
//	bytearray(b'ab')                  builtins bytearray, Args ([]byte,)
//	torch.Size([3, 4])                torch Size, Args ((3, 4),)
//	torch.device('cuda', 1)           torch device, Args ("cuda", 1)
//	pathlib.PosixPath('a/b')          pathlib PosixPath, Args ("a/b",); likewise
//	                                  PurePosixPath, Path and PurePath
//	datetime.date(2026, 5, 11)        datetime date, Args (2026, 5, 11)
//	datetime.datetime(…), .time(…)    Args as in its repr: seconds and
//	                                  microseconds only if they are not zero;
//	                                  Kwargs "tzinfo" and "fold" if set
//	datetime.timedelta(…)             Kwargs "days", "seconds", "microseconds" if
//	                                  not zero; Args (0,) if all are
//	datetime.timezone(…)              Args (timedelta,) or (timedelta, name)
//	uuid.UUID('…')                    uuid UUID, Args (its 36 characters,)
//	numpy.float64(1.5)                numpy float64, Args (1.5,); likewise every
//	                                  scalar of a number, complex number or bool
//	numpy.dtype('<f8')                numpy dtype, Args ("<f8",)
//	numpy.array(…)                    numpy ndarray, Kwargs "dtype" ("<f8"),
//	                                  "shape" (a Tuple), "order" ("C" or "F") and
//	                                  "data" ([]byte, in that order)
//
// An OrderedDict is a *value.Dict, a set a *value.Set, and a complex number
// a complex128.
//
// An object in any other form is treated like one of an unknown class.
package pickle

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/value"
)

var (
	// ErrMalformed reports bytes that are not a pickle that Python writes.
	ErrMalformed = errors.New("malformed pickle")
	// ErrLimit reports a pickle or value that exceeds the limits.
	ErrLimit = errors.New("pickle exceeds a limit")
	// ErrPersistent reports a persistent id without a resolver, or one that the
	// resolver refused.
	ErrPersistent = errors.New("persistent id in pickle")
	// ErrUnknownClass reports a class that is neither known nor allowed.
	ErrUnknownClass = errors.New("unknown class")
	// ErrUnsupported reports a value or opcode that this package does not handle.
	ErrUnsupported = errors.New("unsupported in pickles")
	// ErrCycle reports a value that contains itself.
	ErrCycle = errors.New("value contains itself")
)

// Construct returns the result of a call in a pickle.
type Construct = func(args value.Tuple, kwargs map[string]any) (any, error)

// DecodeOptions are the options of Decode. Nil means the defaults.
type DecodeOptions struct {
	// Persistent returns the object of a persistent id. Nil: persistent ids are
	// refused with ErrPersistent. It is called once for each id that is not
	// shared. It is not called for the ids of classes in PyTorch's legacy format.
	Persistent func(id any) (any, error)
	// Construct has functions for calls in the pickle by the qualified name of
	// the callee, such as "torch._utils._rebuild_tensor_v2". A call of any other
	// name becomes an inert object. The result must not contain a value of
	// package value that contains itself.
	Construct map[string]func(args value.Tuple, kwargs map[string]any) (any, error)
	// Limits bounds the work. Nil: the defaults of Limits.
	Limits *Limits
}

// Decode returns the value of the only pickle in data: nil, bool, int64, uint64
// (beyond int64), *big.Int (beyond that), float64, complex128, string, []byte,
// []any, map[string]any (a dict with only string keys), and the types of package
// value. Everything that is pickled by name is a *value.Object in its normal
// form, unless o.Construct has a function for it; names are never looked up.
//
// Parts that are shared in the pickle are shared in the value, so callers must
// not change it. The error wraps ErrCycle if a value contains itself, and
// ErrLimit if the value would take too much memory or work; other errors wrap
// ErrMalformed, ErrUnsupported or ErrPersistent, or come from the functions in
// o. Surrogates in strings are three bytes each, which is not valid UTF-8.
// Attributes of an OrderedDict are dropped.
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

// DecodePrefix is Decode for a pickle that is followed by other bytes. It also
// returns the length of the pickle.
func DecodePrefix(data []byte, o *DecodeOptions) (v any, n int, err error) {
	if o == nil {
		o = new(DecodeOptions)
	}
	g, n, err := Parse(data, nil, o.Limits)
	if err != nil {
		return nil, 0, err
	}
	v, err = g.Value(g.Root, o)
	return v, n, err
}

// failure is the panic of Fail.
type failure struct{ error }

// Fail panics with an error, formatted like fmt.Errorf. The entry points
// of a decoder return the error by means of Catch, so that its many small functions
// need not.
func Fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Catch sets *err to the error of a Fail. It must be deferred. Other panics go on.
func Catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.error
	default:
		panic(r)
	}
}

// known has the harmless names by module: loading them in Python creates a value
// and has no other effect.
var known = map[string]map[string]bool{
	"builtins": names("bool", "bytearray", "bytes", "complex", "dict", "Ellipsis", "float", "frozenset", "int", "list",
		"NotImplemented", "object", "range", "set", "slice", "str", "tuple"),
	"argparse":    names("Namespace"),
	"collections": names("Counter", "OrderedDict", "defaultdict", "deque"),
	"copyreg":     names("_reconstructor"),
	"datetime":    names("date", "datetime", "time", "timedelta", "timezone"),
	"decimal":     names("Decimal"),
	"fractions":   names("Fraction"),
	"pathlib":     names("Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath"),
	"types":       names("SimpleNamespace"),
	"uuid":        names("UUID"),
	"zoneinfo":    names("ZoneInfo._unpickle"),
	"numpy": names("bool", "bool_", "complex128", "complex64", "dtype", "float16", "float32", "float64", "int16", "int32",
		"int64", "int8", "ndarray", "uint16", "uint32", "uint64", "uint8"),
	"numpy._core.multiarray": names("_reconstruct", "scalar"),
	"numpy.core.multiarray":  names("_reconstruct", "scalar"),
	"numpy._core.numeric":    names("_frombuffer"),
	"numpy.core.numeric":     names("_frombuffer"),
	"torch": names("Size", "device",
		// dtypes
		"bfloat16", "bits16", "bits1x8", "bits2x4", "bits4x2", "bits8", "bool", "complex128", "complex32", "complex64",
		"float16", "float32", "float4_e2m1fn_x2", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
		"float8_e5m2fnuz", "float8_e8m0fnu", "int1", "int16", "int2", "int3", "int32", "int4", "int5", "int6", "int64",
		"int7", "int8", "qint32", "qint8", "quint2x4", "quint4x2", "quint8", "uint1", "uint16", "uint2", "uint3",
		"uint32", "uint4", "uint5", "uint6", "uint64", "uint7", "uint8",
		// kinds of quantisation
		"per_channel_affine", "per_channel_affine_float_qparams", "per_channel_symmetric", "per_tensor_affine",
		"per_tensor_symmetric"),
	"torch.serialization": names("_get_layout"),
}

func names(list ...string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, n := range list {
		m[n] = true
	}
	return m
}

// Known reports whether the name belongs to a harmless class, function or
// constant, which Encode writes without permission. Layouts such as torch.strided
// and memory formats such as torch.channels_last are known.
func Known(module, name string) bool {
	return known[module][name] || module == "torch" && (layouts[name] || memoryFormats[name])
}

// Limits bound the resources that a pickle may use. A zero field means its
// default.
type Limits struct {
	// Depth bounds the nesting of values. Zero: 1000.
	Depth int
	// Memory bounds the estimated bytes that decoding allocates or reads. Zero:
	// 64 MiB plus 40 times the size of the pickle.
	Memory int64
	// Bytes bounds the size of the value if every shared part were copied, with
	// 16 bytes for each value and one for each byte of a string. It bounds walks
	// over the value that do not detect sharing. Zero: the default of Memory.
	Bytes int64
	// Context cancels the decoding. Nil: no cancellation.
	Context context.Context
}

func (l *Limits) withDefaults(input int) Limits {
	var out Limits
	if l != nil {
		out = *l
	}
	if out.Depth <= 0 {
		out.Depth = 1000
	}

	bound := 64<<20 + 40*int64(input)
	if out.Memory <= 0 {
		out.Memory = bound
	}
	if out.Bytes <= 0 {
		out.Bytes = bound
	}
	return out
}

// maxBig bounds the bytes of an integer: printing it takes more than linear time,
// and package value stores at most 10,000 digits.
const maxBig = 4096

// account counts the memory and work that decoding may still use. It stops pickles with
// values that grow faster than their input.
type account struct {
	ctx   context.Context // of the whole decoding
	limit int64
	left  int64
	// pause is the value of left at which ctx is checked next.
	pause int64
}

// stride is the number of bytes that are charged between two checks of the
// context.
const stride = 1 << 20

func newAccount(l Limits) account {
	return account{ctx: l.Context, limit: l.Memory, left: l.Memory, pause: l.Memory}
}

// charge counts n bytes. It fails if no bytes are left or the context ended.
func (a *account) charge(n int) {
	if a.left -= int64(n); a.left < a.pause {
		a.look()
	}
}

// refund adds n bytes that have become garbage.
func (a *account) refund(n int) { a.left += int64(n) }

func (a *account) look() {
	if a.left < 0 {
		Fail("%w: it takes more than %d bytes of memory or as many steps", ErrLimit, a.limit)
	}
	a.pause = max(0, a.left-stride)
	if a.ctx != nil && a.ctx.Err() != nil {
		panic(failure{context.Cause(a.ctx)})
	}
}

// The estimated sizes of values in bytes.
const (
	cellBytes   = 8
	spanBytes   = 16
	seqBytes    = 32
	objectBytes = 48
	globalBytes = 160 // with its object
	anyBytes    = 16  // an interface value
	boxBytes    = 24  // a slice in an interface value
	madeBytes   = 96  // an entry of builder.made
	foreign     = 256 // the result of a caller's function
	valueObject = 144 // a value.Object
	valueDict   = 40  // a value.Dict or value.Set
	pairBytes   = 32  // of a value.Dict
	seenBytes   = 48  // a key while keys are compared
)

// mapBytes returns the size of a map[string]any with n entries.
func mapBytes(n int) int {
	switch {
	case n == 0:
		return 48
	case n <= 8:
		return 336
	}
	return 48 + 64*n
}
