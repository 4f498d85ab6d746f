package tensor

import (
	"fmt"
	"slices"
	"unsafe"
)

// Element is a Go type whose memory is that of a [DType].
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
	return FromBytes(dtypeOf[E](), shape, bytesOf(values))
}

// Values returns t's memory as a slice of E, without a copy. The error wraps
// [ErrDType] where t's elements are not of type E, and [ErrLayout] where t is not
// contiguous, lies at an address that Go does not allow for an E, or holds
// bools that are neither 0 nor 1; [Tensor.Clone] helps against the first two.
func Values[E Element](t *Tensor) ([]E, error) {
	if want := dtypeOf[E](); t.dtype != want {
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

func dtypeOf[E Element]() DType {
	var zero E
	switch any(zero).(type) {
	case float64:
		return Float64
	case float32:
		return Float32
	case int64:
		return Int64
	case int32:
		return Int32
	case int16:
		return Int16
	case int8:
		return Int8
	case uint64:
		return Uint64
	case uint32:
		return Uint32
	case uint16:
		return Uint16
	case uint8:
		return Uint8
	case bool:
		return Bool
	case complex64:
		return Complex64
	}
	return Complex128
}

// bytesOf returns the memory of values.
func bytesOf[E any](values []E) []byte {
	var zero E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(zero)))
}

// elements returns memory as values; what is left after the last whole one is
// not seen. The memory must be aligned for E.
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
