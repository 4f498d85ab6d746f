package tensor

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrLayout reports memory whose layout does not allow the operation: a view
// that is not contiguous or not aligned where it has to be, or a destination
// that holds several elements in one place.
var ErrLayout = errors.New("unsuitable memory layout")

// maxAlloc is below what the runtime can address on any 64-bit machine: above
// it make panics, below it the machine decides.
const maxAlloc = 1 << 46

// Tensor is a strided view of host memory. Several tensors may share memory;
// the methods that only read are safe for concurrent use, and writing needs
// the caller's care. The zero Tensor is not valid: use the constructors.
type Tensor struct {
	dtype   DType
	shape   []int64
	strides []int64 // in elements; zero in an expanded dimension
	offset  int64   // of the first element, in elements; zero where there is none
	data    []byte
	// placeholder marks a tensor without memory: data is one zero that stands
	// for every element.
	placeholder bool
}

// New returns a contiguous tensor of zeros in memory of its own. The error
// wraps [ErrShape] or [ErrDType] where no such tensor exists; whether the
// machine has the memory is the caller's to know.
func New(d DType, shape []int64) (*Tensor, error) {
	n, err := NumBytes(d, shape)
	if err != nil {
		return nil, err
	}
	if n > min(maxAlloc, math.MaxInt) {
		return nil, fmt.Errorf("%w: %v of %v takes %d bytes, more than memory can hold", ErrShape, shape, d, n)
	}
	return contiguous(d, shape, make([]byte, n)), nil
}

// FromBytes returns a contiguous tensor over data, which is not copied: the
// tensor and data stay the same memory. len(data) must be exactly what
// [NumBytes] says.
func FromBytes(d DType, shape []int64, data []byte) (*Tensor, error) {
	n, err := NumBytes(d, shape)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != n {
		return nil, fmt.Errorf("%w: %v of %v takes %d bytes, got %d", ErrShape, shape, d, n, len(data))
	}
	return contiguous(d, shape, data), nil
}

// FromStrided returns a view of data, which is not copied. The element at index
// i lies offset + Σ i[k]·strides[k] elements into data. Strides and offset count
// elements and are not negative; every element must lie inside data. A stride of
// zero repeats an element, which makes the view one to read from.
func FromStrided(d DType, shape, strides []int64, offset int64, data []byte) (*Tensor, error) {
	if _, err := NumBytes(d, shape); err != nil {
		return nil, err
	}
	if len(strides) != len(shape) {
		return nil, fmt.Errorf("%w: %d strides for the %d dimensions of %v", ErrShape, len(strides), len(shape), shape)
	}
	if offset < 0 || slices.ContainsFunc(strides, func(s int64) bool { return s < 0 }) {
		return nil, fmt.Errorf("%w: negative stride or offset in %v + %d", ErrShape, strides, offset)
	}
	held := int64(len(data) / d.Size())
	if !slices.Contains(shape, 0) && !reaches(shape, strides, offset, held) {
		return nil, fmt.Errorf("%w: %v with strides %v from %d on leaves the %d elements of its memory",
			ErrShape, shape, strides, offset, held)
	}
	return (&Tensor{dtype: d, data: data}).view(slices.Clone(shape), slices.Clone(strides), offset), nil
}

// reaches reports whether the last of the elements is one of the held first
// ones. It subtracts from what is left, so that no product can overflow.
func reaches(shape, strides []int64, offset, held int64) bool {
	if offset >= held {
		return false
	}
	left := held - 1 - offset
	for d, n := range shape {
		if n > 1 && strides[d] > left/(n-1) {
			return false
		}
		left -= (n - 1) * strides[d]
	}
	return true
}

func contiguous(d DType, shape []int64, data []byte) *Tensor {
	return &Tensor{dtype: d, shape: slices.Clone(shape), strides: RowMajor(shape), data: data}
}

// view returns another view of t's memory. It keeps the slices. An empty view has
// no first element, and the offset that was computed for it may lie anywhere.
func (t *Tensor) view(shape, strides []int64, offset int64) *Tensor {
	if slices.Contains(shape, 0) {
		offset = 0
	}
	return &Tensor{dtype: t.dtype, shape: shape, strides: strides, offset: offset, data: t.data, placeholder: t.placeholder}
}

// RowMajor returns the strides of a contiguous tensor of that shape: the distance,
// in elements, between neighbours in each dimension, the last one fastest.
func RowMajor(shape []int64) []int64 {
	strides, n := make([]int64, len(shape)), int64(1)
	for d, s := range slices.Backward(shape) {
		strides[d] = n
		n *= max(s, 1)
	}
	return strides
}

// DType returns the type of the elements.
func (t *Tensor) DType() DType { return t.dtype }

// Shape returns the sizes of the dimensions. The slice is shared: do not write
// to it.
func (t *Tensor) Shape() []int64 { return t.shape }

// Strides returns the distance, in elements, between neighbours in each
// dimension. The slice is shared: do not write to it.
func (t *Tensor) Strides() []int64 { return t.strides }

// Dims returns the number of dimensions.
func (t *Tensor) Dims() int { return len(t.shape) }

// NumElements returns the number of elements, repeated ones counted each time.
func (t *Tensor) NumElements() int64 { return Box{Sizes: t.shape}.Volume() }

// NumBytes returns the bytes of t's contiguous form, which may be more or less
// than the memory behind a view.
func (t *Tensor) NumBytes() int64 { return t.NumElements() * t.size() }

// Contiguous reports whether t's elements follow each other in memory without a
// gap, the last dimension fastest. An empty tensor is contiguous.
func (t *Tensor) Contiguous() bool {
	want := int64(1)
	for d, n := range slices.Backward(t.shape) {
		if n > 1 && t.strides[d] != want {
			return slices.Contains(t.shape, 0)
		}
		want *= n
	}
	return true
}

// String prints dtype and shape, for people.
func (t *Tensor) String() string { return fmt.Sprintf("%v%v", t.dtype, t.shape) }

func (t *Tensor) size() int64 { return int64(t.dtype.Size()) }

// memory returns what lies from the first element on.
func (t *Tensor) memory() []byte { return t.data[t.offset*t.size():] }
