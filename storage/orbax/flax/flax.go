// Package flax reads the files of Flax's msgpack serialization, in which old releases of Orbax keep
// leaves of a tree. It finds the places of arrays and does not read their bytes. The contract is at Read.
package flax

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	// ErrMalformed reports a file that contradicts itself.
	ErrMalformed = errors.New("malformed msgpack of Flax")
	// ErrUnsupported reports content that is not read.
	ErrUnsupported = errors.New("unsupported msgpack of Flax")
)

// Array is the place of an array: its bytes are in row-major order and little-endian.
type Array struct {
	DType          string // NumPy's name, such as "float32"
	Shape          []int64
	Offset, Length int64
}

// Map is a map by strings. No key is there twice.
type Map map[string]any

// The bounds of a file.
const (
	maxDepth = 128
	maxNodes = 4 << 20
	maxText  = 64 << 20 // bytes of strings and other values
	maxDims  = 32
)

// Read decodes a file. It returns nil, bool, int64, uint64 (beyond int64), float64, complex128, string, []byte, []any,
// Map or *Array. The error wraps ErrMalformed or ErrUnsupported, or comes from r.
func Read(ctx context.Context, r blob.Reader) (any, error) {
	d := &decoder{ctx: ctx, r: r, end: r.Size()}
	v := d.value(0)
	if d.err == nil && d.at != d.end {
		d.fail("%d bytes after the end", d.end-d.at)
	}
	if d.err != nil {
		return nil, d.err
	}
	return v, nil
}

// decoder decodes values one after the other. The first error sticks.
type decoder struct {
	ctx   context.Context // of the call of Read
	r     blob.Reader
	at    int64 // the offset of the next byte
	end   int64 // of the file, or of an extension
	err   error
	nodes int
	text  int64

	buf  []byte // bytes of the file from from on
	from int64
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: byte %d: %w", ErrMalformed, d.at, fmt.Errorf(format, args...))
	}
}

// ahead is the number of bytes that are read at once.
const ahead = 64 << 10

// take returns the next n bytes, which are valid until the next call.
func (d *decoder) take(n int64) []byte {
	if d.err == nil && (n < 0 || n > d.end-d.at) {
		d.fail("%d bytes wanted, %d left", n, d.end-d.at)
	}
	if d.err != nil {
		return nil
	}

	if d.at < d.from || d.at+n > d.from+int64(len(d.buf)) {
		d.buf = make([]byte, min(max(n, ahead), d.r.Size()-d.at))
		d.from = d.at
		if d.err = d.r.ReadAt(d.ctx, d.buf, d.from); d.err != nil {
			return nil
		}
	}
	p := d.buf[d.at-d.from:][:n]
	d.at += n
	return p
}

// uint reads a number of n bytes, big-endian.
func (d *decoder) uint(n int64) uint64 {
	var all [8]byte
	copy(all[8-n:], d.take(n))
	return binary.BigEndian.Uint64(all[:])
}

// bytes reads n bytes of a value.
func (d *decoder) bytes(n uint64) []byte {
	if d.text += int64(min(n, maxText+1)); d.text > maxText {
		d.fail("values of more than %d bytes", maxText)
	}
	return append([]byte{}, d.take(int64(min(n, math.MaxInt64)))...)
}

func (d *decoder) string(n uint64) string {
	b := d.bytes(n)
	if !utf8.Valid(b) {
		d.fail("a string that is not UTF-8")
	}
	return string(b)
}

// value reads a value.
func (d *decoder) value(depth int) any {
	if d.nodes++; depth > maxDepth || d.nodes > maxNodes {
		d.fail("values nested deeper than %d, or more than %d", maxDepth, maxNodes)
	}
	first := d.take(1)
	if first == nil {
		return nil
	}

	switch b := first[0]; {
	case b < 0x80:
		return int64(b)
	case b < 0x90:
		return d.dict(uint64(b&0x0f), depth)
	case b < 0xa0:
		return d.list(uint64(b&0x0f), depth)
	case b < 0xc0:
		return d.string(uint64(b & 0x1f))
	case b >= 0xe0:
		return int64(int8(b))
	default:
		return d.long(b, depth)
	}
}

// long reads a value with a first byte of its own.
func (d *decoder) long(b byte, depth int) any {
	switch b {
	case 0xc0:
		return nil
	case 0xc2, 0xc3:
		return b == 0xc3
	case 0xc4, 0xc5, 0xc6:
		return d.bytes(d.uint(1 << (b - 0xc4)))
	case 0xc7, 0xc8, 0xc9:
		return d.extension(d.uint(1<<(b-0xc7)), depth)
	case 0xca:
		return float64(math.Float32frombits(uint32(d.uint(4))))
	case 0xcb:
		return math.Float64frombits(d.uint(8))
	case 0xcc, 0xcd, 0xce, 0xcf:
		n := d.uint(1 << (b - 0xcc))
		if n > math.MaxInt64 {
			return n
		}
		return int64(n)
	case 0xd0, 0xd1, 0xd2, 0xd3:
		size := int64(1) << (b - 0xd0)
		shift := 64 - 8*size
		return int64(d.uint(size)<<shift) >> shift
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return d.extension(1<<(b-0xd4), depth)
	case 0xd9, 0xda, 0xdb:
		return d.string(d.uint(1 << (b - 0xd9)))
	case 0xdc, 0xdd:
		return d.list(d.uint(2<<(b-0xdc)), depth)
	case 0xde, 0xdf:
		return d.dict(d.uint(2<<(b-0xde)), depth)
	}
	d.fail("the byte %#02x begins no value", b)
	return nil
}

func (d *decoder) list(n uint64, depth int) any {
	if n > uint64(d.end-d.at) {
		d.fail("a list of %d", n)
	}
	var out []any
	for range n {
		if out = append(out, d.value(depth+1)); d.err != nil {
			return nil
		}
	}
	return out
}

// chunked is a key of the dict that stands for an array of 1 GiB or more.
const chunked = "__msgpack_chunked_array__"

func (d *decoder) dict(n uint64, depth int) any {
	if n > uint64(d.end-d.at)/2 {
		d.fail("a map of %d", n)
	}
	out := Map{}
	for range n {
		if d.err != nil {
			return nil
		}
		key, ok := d.value(depth + 1).(string)
		if !ok {
			d.fail("a key that is no string")
			return nil
		}
		if _, ok := out[key]; ok {
			d.fail("the key %.100q is there twice", key)
		}
		out[key] = d.value(depth + 1)
	}
	if out[chunked] == true && d.err == nil {
		d.err = fmt.Errorf("%w: an array in pieces", ErrUnsupported)
	}
	return out
}

// The extensions of Flax.
const (
	extArray   = 1
	extComplex = 2
	extScalar  = 3 // of NumPy, stored like an array
)

// extension reads an extension of n bytes.
func (d *decoder) extension(n uint64, depth int) any {
	kind := d.uint(1)
	if n > uint64(d.end-d.at) {
		d.fail("an extension of %d bytes", n)
	}
	if d.err != nil {
		return nil
	}

	outer := d.end
	d.end = d.at + int64(n)
	defer func() { d.end = outer }()

	var v any
	switch kind {
	case extArray, extScalar:
		v = d.array(depth)
	case extComplex:
		parts, _ := d.value(depth + 1).([]any)
		if len(parts) != 2 {
			d.fail("a complex number of %d parts", len(parts))
			return nil
		}
		re, ok1 := parts[0].(float64)
		im, ok2 := parts[1].(float64)
		if !ok1 || !ok2 {
			d.fail("a complex number of %T and %T", parts[0], parts[1])
		}
		v = complex(re, im)
	default:
		if d.err == nil {
			d.err = fmt.Errorf("%w: an extension of type %d", ErrUnsupported, kind)
		}
	}
	if d.err == nil && d.at != d.end {
		d.fail("%d bytes after the end of an extension", d.end-d.at)
	}
	return v
}

// array reads the shape, the dtype and the place of an array.
func (d *decoder) array(depth int) any {
	if b := d.take(1); b == nil || b[0] != 0x93 {
		d.fail("an array without three parts")
		return nil
	}
	shape, ok1 := d.value(depth + 1).([]any)
	dtype, ok2 := d.value(depth + 1).(string)
	if len(shape) > maxDims || !ok1 && shape != nil || !ok2 {
		d.fail("an array of dtype %.100q and %d dimensions", dtype, len(shape))
		return nil
	}

	a := &Array{DType: dtype, Shape: []int64{}}
	for _, n := range shape {
		n, ok := n.(int64)
		if !ok || n < 0 {
			d.fail("the shape %.100v", shape)
			return nil
		}
		a.Shape = append(a.Shape, n)
	}

	b := d.take(1)
	if b == nil || b[0] < 0xc4 || b[0] > 0xc6 {
		d.fail("an array without bytes")
		return nil
	}
	n := d.uint(1 << (b[0] - 0xc4))
	if d.err != nil {
		return nil
	}
	if n > uint64(d.end-d.at) {
		d.fail("an array of %d bytes, and %d are left", n, d.end-d.at)
		return nil
	}
	a.Offset, a.Length = d.at, int64(n)
	d.at += int64(n)
	return a
}
