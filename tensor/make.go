package tensor

import (
	"fmt"
	"io/fs"
	"math"
	"reflect"
	"slices"
	"unsafe"
)

// Element is a Go type with the memory of a [DType].
type Element interface {
	float64 | float32 |
		int64 | int32 | int16 | int8 |
		uint64 | uint32 | uint16 | uint8 |
		bool | complex64 | complex128
}

// Of returns a contiguous tensor over values, which are not copied: the tensor
// and the slice stay the same memory. The shape must hold len(values) elements.
// Bytes other than 0 and 1 must not be copied into a tensor over bools.
func Of[E Element](shape []int64, values []E) (*Tensor, error) {
	return FromBytes(DTypeOf[E](), shape, bytesOf(values))
}

// Values returns t's memory as a slice of E, without a copy. The error wraps
// [ErrDType] if t's elements are not of type E, and [ErrLayout] if t is not
// contiguous, lies at an address that Go does not allow for an E, or holds
// bools that are neither 0 nor 1; [Tensor.Clone] helps against the first two.
func Values[E Element](t *Tensor) ([]E, error) {
	if want := DTypeOf[E](); t.dtype != want {
		return nil, fmt.Errorf("%w: %v read as %v", ErrDType, t, want)
	}

	mem, ok := t.Bytes()
	if !ok {
		return nil, fmt.Errorf("%w: %v with strides %v is not contiguous", ErrLayout, t, t.strides)
	}
	if !aligned[E](mem) {
		return nil, fmt.Errorf("%w: %v is not aligned in memory", ErrLayout, t)
	}
	if t.dtype == Bool && slices.ContainsFunc(mem, func(b byte) bool { return b > 1 }) {
		return nil, fmt.Errorf("%w: %v holds bytes other than 0 and 1", ErrLayout, t)
	}
	return elements[E](mem), nil
}

// DTypeOf returns the dtype of elements of type E.
func DTypeOf[E Element]() DType { return kinds[reflect.TypeFor[E]().Kind()] }

var kinds = map[reflect.Kind]DType{
	reflect.Float64: Float64, reflect.Float32: Float32,
	reflect.Int64: Int64, reflect.Int32: Int32, reflect.Int16: Int16, reflect.Int8: Int8,
	reflect.Uint64: Uint64, reflect.Uint32: Uint32, reflect.Uint16: Uint16, reflect.Uint8: Uint8,
	reflect.Bool: Bool, reflect.Complex64: Complex64, reflect.Complex128: Complex128,
}

// bytesOf returns the memory of values.
func bytesOf[E any](values []E) []byte {
	var zero E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(zero)))
}

// elements returns memory as values, without bytes after the last whole one. The
// memory must be aligned for E.
func elements[E any](mem []byte) []E {
	var zero E
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(zero)))
}

func aligned[E any](mem []byte) bool {
	var zero E
	return alignedTo(mem, unsafe.Alignof(zero))
}

func alignedTo(mem []byte, n uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%n == 0
}

// Number is a Go type of values that can be counted up.
type Number interface {
	float64 | float32 |
		int64 | int32 | int16 | int8 |
		uint64 | uint32 | uint16 | uint8
}

// Full returns a tensor of dtype d and the given shape. Its elements are all v, as [Convert]
// turns a value of v's type into one of d. It has memory of its own.
func Full[E Element](d DType, shape []int64, v E) (*Tensor, error) {
	one, err := Of(nil, []E{v})
	if err != nil {
		return nil, err
	}

	if one, err = Cast(one, d); err != nil {
		return nil, fmt.Errorf("full: %w", err)
	}

	out, err := New(d, shape)
	if err != nil {
		return nil, fmt.Errorf("full: %w", err)
	}

	all, err := one.Expand(shape)
	if err != nil {
		return nil, fmt.Errorf("full: %w", err)
	}

	copyElements(out, all)
	return out, nil
}

// Arange returns the values start, start+step and so on before end as a tensor
// of one dimension. It is empty if end does not lie in the direction of step. The error
// wraps [fs.ErrInvalid] if step is zero or a number is not finite, and [ErrShape] if there
// are more values than memory can hold.
func Arange[E Number](start, end, step E) (*Tensor, error) {
	switch {
	case step == 0:
		return nil, fmt.Errorf("arange from %v to %v: a step of zero: %w", start, end, fs.ErrInvalid)
	case !isFinite(start) || !isFinite(end) || !isFinite(step):
		return nil, fmt.Errorf("arange from %v to %v by %v: a number is not finite: %w", start, end, step, fs.ErrInvalid)
	}

	out, err := New(DTypeOf[E](), []int64{countSteps(start, end, step)})
	if err != nil {
		return nil, fmt.Errorf("arange from %v to %v by %v: %w", start, end, step, err)
	}

	values := elements[E](out.data)
	for i := range values {
		if isInteger[E]() {
			values[i] = start + E(i)*step
		} else {
			values[i] = E(float64(start) + float64(i)*float64(step))
		}
	}

	return out, nil
}

// countSteps returns how many values there are from start to before end, and the largest
// number if no tensor could hold that many. The numbers are finite, and step is not zero.
func countSteps[E Number](start, end, step E) int64 {
	if !isInteger[E]() {
		n := math.Ceil((float64(end) - float64(start)) / float64(step))
		if n >= maxAlloc {
			return math.MaxInt64
		}
		return int64(max(n, 0))
	}

	if step > 0 && end <= start || step < 0 && end >= start {
		return 0
	}

	// Modulo 2^64 the differences of all integer types are correct.
	span, by := uint64(end)-uint64(start), uint64(step)
	if step < 0 {
		span, by = -span, -by
	}
	return int64(min((span-1)/by+1, math.MaxInt64))
}

func isInteger[E Number]() bool { return E(1)/2 == 0 }

// isFinite reports whether v is finite: an infinity or NaN minus itself is NaN.
func isFinite[E Number](v E) bool { return v-v == 0 }

// Cat joins tensors along dimension dim, in memory of its own. There must be one
// at least; dtypes must be equal, and so must the sizes of all other dimensions.
func Cat(dim int, ts ...*Tensor) (*Tensor, error) {
	if len(ts) == 0 {
		return nil, fmt.Errorf("cat: %w: no tensors", ErrShape)
	}
	if err := ts[0].checkDim(dim); err != nil {
		return nil, fmt.Errorf("cat: %w", err)
	}

	shape := slices.Clone(ts[0].shape)
	shape[dim] = 0
	for i, t := range ts {
		if t.dtype != ts[0].dtype {
			return nil, fmt.Errorf("cat: %w: tensor %d is %v, the first %v", ErrDType, i, t, ts[0])
		}
		if len(t.shape) != len(shape) || !slices.Equal(t.shape[:dim], shape[:dim]) || !slices.Equal(t.shape[dim+1:], shape[dim+1:]) {
			return nil, fmt.Errorf("cat: %w: tensor %d is %v, the first %v", ErrShape, i, t, ts[0])
		}
		if shape[dim] += t.shape[dim]; shape[dim] < 0 {
			return nil, fmt.Errorf("cat: %w: more elements than an int64 counts", ErrShape)
		}
	}

	out, err := New(ts[0].dtype, shape)
	if err != nil {
		return nil, fmt.Errorf("cat: %w", err)
	}

	at := make([]int64, len(shape))
	for _, t := range ts {
		copyElements(out.narrow(Box{Offsets: at, Sizes: t.shape}), t)
		at[dim] += t.shape[dim]
	}

	return out, nil
}

// Chunk cuts dimension dim of t into the given number of parts and returns one of
// them, sharing t's memory. [CeilChunk] gives the sizes of the parts.
func Chunk(t *Tensor, dim, parts, index int) (*Tensor, error) {
	if err := t.checkDim(dim); err != nil {
		return nil, fmt.Errorf("chunk: %w", err)
	}
	if parts < 1 || index < 0 || index >= parts {
		return nil, fmt.Errorf("chunk %v: %w: part %d of %d", t, ErrShape, index, parts)
	}
	lo, hi := CeilChunk(t.shape[dim], int64(parts), int64(index))
	return t.Slice(dim, lo, hi, 1)
}

// CeilChunk returns the half-open interval of the i-th of n chunks of a length. The
// size of the chunks is rounded up, so the last ones may be smaller or empty, as with
// torch.chunk. It does not overflow.
func CeilChunk(length, n, i int64) (lo, hi int64) {
	size := max(length-1, 0)/n + 1
	if i > length/size {
		return length, length
	}
	lo = i * size
	return lo, lo + min(size, length-lo)
}

// StridedSlice returns the elements of t at the indices begin[d], begin[d]+step[d] and so on
// before end[d] in each dimension d. The three lists have the same length; dimensions that
// they do not reach are whole.
//
// Indices work like slices in Python: a negative one counts from the end, one beyond an
// end of the dimension stands for that end, and a negative step goes backwards. An end
// before index 0 is any number below minus the size. A step of zero is an error that wraps
// [ErrShape].
//
// The result shares t's memory, or is a copy if a step is negative.
func StridedSlice(t *Tensor, begin, end, step []int64) (*Tensor, error) {
	if n := len(begin); n > t.Dims() || len(end) != n || len(step) != n {
		return nil, fmt.Errorf("strided slice %v: %w: %d begins, %d ends and %d steps", t, ErrShape, len(begin), len(end), len(step))
	}

	var turned []int
	for d := range begin {
		if step[d] == 0 {
			return nil, fmt.Errorf("strided slice %v: %w: a step of zero in dimension %d", t, ErrShape, d)
		}

		lo, hi, by := pythonSlice(begin[d], end[d], step[d], t.shape[d])
		var err error
		if t, err = t.Slice(d, lo, hi, by); err != nil {
			return nil, fmt.Errorf("strided %w", err)
		}

		if step[d] < 0 {
			turned = append(turned, d)
		}
	}

	for _, d := range turned {
		var err error
		if t, err = t.reversed(d); err != nil {
			return nil, fmt.Errorf("strided slice: %w", err)
		}
	}

	return t, nil
}

// pythonSlice returns the indices of a slice of n elements, as the arguments of
// [Tensor.Slice]. With a negative step they ascend too.
func pythonSlice(begin, end, step, n int64) (lo, hi, by int64) {
	least, most := int64(0), n // of an index that is in bounds
	if step < 0 {
		least, most = -1, n-1
	}

	index := func(i int64) int64 {
		if i < 0 {
			i += n
		}
		return min(max(i, least), most)
	}
	lo, hi = index(begin), index(end)
	if step > 0 {
		return lo, max(lo, hi), step
	}

	by = -max(step, -math.MaxInt64)
	if lo <= hi {
		return 0, 0, by
	}
	return lo - (lo-hi-1)/by*by, lo + 1, by
}

// tensorRow returns a function that returns the part of t with one index in dimension d.
func tensorRow(t *Tensor, d int) func(i int64) *Tensor {
	b := Whole(t.shape)
	b.Offsets, b.Sizes = slices.Clone(b.Offsets), slices.Clone(b.Sizes)
	b.Sizes[d] = 1
	return func(i int64) *Tensor {
		b.Offsets[d] = i
		return t.narrow(b)
	}
}

// Numbers returns mem as a slice of E, without a copy. It drops bytes after the last whole E,
// and makes no checks: mem must be aligned for E, see [DType.Aligned]. [Values] does the same
// for tensors, with checks.
func Numbers[E Number](mem []byte) []E { return elements[E](mem) }
