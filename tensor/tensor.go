// Package tensor holds element types, shapes, boxes and strided views of host
// memory, with copies and casts between them. It does not depend on ranks, files or
// checkpoints and imports no other package of this module. The contract of memory is
// at [Tensor], of geometry at [Box], of values at [Convert].
//
// # Byte order
//
// Elements are little-endian in memory and in every format, so the package does not
// compile for big-endian machines.
package tensor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// ErrLayout reports memory with a layout that does not allow the operation: a view that is
// not contiguous or not aligned if it has to be, or a destination that holds several elements
// in one place.
var ErrLayout = errors.New("unsuitable memory layout")

const (
	// maxAlloc bounds allocations: above the address space of a 64-bit machine, make panics.
	maxAlloc = 1 << 46
	// compareBytes is how many bytes [Equal] compares at a time.
	compareBytes = 256 << 10
	// maxPiece is how many bytes [Tensor.WriteTo] copies at a time.
	maxPiece = 1 << 20
)

// Tensor is a strided view of host memory. Several tensors may share memory.
// Methods that only read are safe for concurrent use; the caller must synchronise
// writes. The zero Tensor is not valid: use the constructors.
type Tensor struct {
	dtype   DType
	shape   []int64
	strides []int64 // in elements; zero in an expanded dimension
	offset  int64   // of the first element, in elements; zero if the tensor is empty
	data    []byte
	// placeholder marks a tensor without memory: data is one zero that stands
	// for every element.
	placeholder bool
	lossy       bool // see Lossy
}

// New returns a contiguous tensor of zeros in memory of its own. The error
// wraps [ErrShape] or [ErrDType] if the arguments are invalid. It does not check whether
// the machine has the memory.
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

// FromBytes returns a contiguous tensor over data, without a copy: the tensor and data stay
// the same memory. len(data) must be exactly the result of [NumBytes].
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
// zero repeats an element; such a view can only be read.
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

// reaches reports whether the last element is among the first held elements of the
// memory. It subtracts, so that no product can overflow.
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

// view returns another view of t's memory. It keeps the slices. The offset of an
// empty view may be out of bounds, since it has no first element.
func (t *Tensor) view(shape, strides []int64, offset int64) *Tensor {
	if slices.Contains(shape, 0) {
		offset = 0
	}
	return &Tensor{dtype: t.dtype, shape: shape, strides: strides, offset: offset, data: t.data, placeholder: t.placeholder, lossy: t.lossy}
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

// memory returns the memory from the first element on.
func (t *Tensor) memory() []byte { return t.data[t.offset*t.size():] }

// Memory returns the memory from the first element of t to the last one, with whatever
// lies between them. It is empty for a placeholder and for a tensor without elements.
func (t *Tensor) Memory() []byte {
	if t.placeholder || t.NumElements() == 0 {
		return nil
	}
	last := int64(0)
	for d, n := range t.shape {
		last += (n - 1) * t.strides[d]
	}
	n := (last + 1) * t.size()
	return t.memory()[:n:n]
}

// Narrow returns the part of t inside b, sharing t's memory.
func (t *Tensor) Narrow(b Box) (*Tensor, error) {
	if err := b.Check(t.shape); err != nil {
		return nil, fmt.Errorf("narrow %v: %w", t, err)
	}
	return t.narrow(b), nil
}

// narrow is [Tensor.Narrow] for a box that is known to lie inside t.
func (t *Tensor) narrow(b Box) *Tensor {
	at := t.offset
	for d, o := range b.Offsets {
		at += o * t.strides[d]
	}
	return t.view(b.Sizes, t.strides, at)
}

// Slice returns every step-th index from start to before end of dimension dim,
// sharing t's memory. The interval must lie inside the dimension, and step must
// be positive.
func (t *Tensor) Slice(dim int, start, end, step int64) (*Tensor, error) {
	if err := t.checkDim(dim); err != nil {
		return nil, fmt.Errorf("slice: %w", err)
	}
	if start < 0 || end < start || end > t.shape[dim] || step < 1 {
		return nil, fmt.Errorf("slice %v: %w: [%d:%d:%d] in dimension %d", t, ErrShape, start, end, step, dim)
	}

	shape, strides := slices.Clone(t.shape), slices.Clone(t.strides)
	shape[dim] = 0
	if end > start {
		shape[dim] = (end-start-1)/step + 1
	}

	// A single index has no neighbour, and the product could overflow.
	if shape[dim] > 1 {
		strides[dim] *= step
	}
	return t.view(shape, strides, t.offset+start*t.strides[dim]), nil
}

// Transpose returns t with dimensions a and b exchanged, sharing t's memory.
func (t *Tensor) Transpose(a, b int) (*Tensor, error) {
	for _, dim := range []int{a, b} {
		if err := t.checkDim(dim); err != nil {
			return nil, fmt.Errorf("transpose: %w", err)
		}
	}
	shape, strides := slices.Clone(t.shape), slices.Clone(t.strides)
	shape[a], shape[b] = shape[b], shape[a]
	strides[a], strides[b] = strides[b], strides[a]
	return t.view(shape, strides, t.offset), nil
}

// Expand returns t repeated to the given shape, sharing t's memory: dimensions
// of size one take any size, and new ones may come in front. The elements of an
// expanded dimension share their memory, so the view can only be read.
func (t *Tensor) Expand(shape []int64) (*Tensor, error) {
	if _, err := NumBytes(t.dtype, shape); err != nil {
		return nil, fmt.Errorf("expand %v: %w", t, err)
	}

	added := len(shape) - len(t.shape)
	if added < 0 {
		return nil, fmt.Errorf("expand %v: %w: %v has fewer dimensions", t, ErrShape, shape)
	}

	strides := make([]int64, len(shape))
	for d, n := range t.shape {
		switch {
		case shape[added+d] == n:
			strides[added+d] = t.strides[d]
		case n != 1:
			return nil, fmt.Errorf("expand %v: %w: dimension %d does not become %d", t, ErrShape, d, shape[added+d])
		}
	}

	return t.view(slices.Clone(shape), strides, t.offset), nil
}

func (t *Tensor) checkDim(dim int) error {
	if dim < 0 || dim >= len(t.shape) {
		return fmt.Errorf("%v: %w: no dimension %d", t, ErrShape, dim)
	}
	return nil
}

// element returns the memory of the i-th element in row-major order.
func (t *Tensor) element(i int64) []byte {
	at, size := t.offset, t.size()
	for d, n := range slices.Backward(t.shape) {
		at += i % n * t.strides[d]
		i /= n
	}
	return t.data[at*size : (at+1)*size]
}

// gather copies the elements [lo, hi), in row-major order, into p.
func (t *Tensor) gather(p []byte, lo, hi int64) {
	t.eachFlat(lo, hi, func(part *Tensor, at, end int64) {
		copyElements(contiguous(t.dtype, part.shape, p[at:end]), part)
	})
}

// scatter copies p over the elements [lo, hi).
func (t *Tensor) scatter(p []byte, lo, hi int64) {
	t.eachFlat(lo, hi, func(part *Tensor, at, end int64) {
		copyElements(part, contiguous(t.dtype, part.shape, p[at:end]))
	})
}

// eachFlat calls f with views of the boxes of [lo, hi), which must lie inside t, and
// with the byte interval of each within a contiguous copy of [lo, hi).
func (t *Tensor) eachFlat(lo, hi int64, f func(part *Tensor, at, end int64)) {
	if lo == hi {
		return
	}

	at := int64(0)
	for _, b := range appendFlat(nil, t.shape, nil, lo, hi) {
		part := t.narrow(b)
		end := at + part.NumBytes()
		f(part, at, end)
		at = end
	}
}

// scratch returns the buffer that room and stretch need for n elements, nil if they
// can use t's own memory.
func (t *Tensor) scratch(n int64) []byte {
	if t.Contiguous() && t.aligned() {
		return nil
	}
	return make([]byte, n*t.size())
}

// room returns t's own memory of the elements [lo, hi), or the part of buf for them.
func (t *Tensor) room(buf []byte, lo, hi int64) []byte {
	if buf == nil {
		return t.memory()[lo*t.size() : hi*t.size()]
	}
	return buf[:(hi-lo)*t.size()]
}

// stretch returns the elements [lo, hi), in t's own memory or gathered into buf.
func (t *Tensor) stretch(buf []byte, lo, hi int64) []byte {
	p := t.room(buf, lo, hi)
	if buf != nil {
		t.gather(p, lo, hi)
	}
	return p
}

func (t *Tensor) aligned() bool { return t.dtype.Aligned(t.memory()) }

// Bytes returns the memory of a contiguous tensor itself, and false for any
// other and for placeholders. Writing to the slice writes to the tensor.
func (t *Tensor) Bytes() ([]byte, bool) {
	if t.placeholder || !t.Contiguous() {
		return nil, false
	}
	n := t.NumBytes()
	return t.memory()[:n:n], true
}

// AppendRuns appends the memory of t itself to runs: all elements in row-major order, in
// slices as long as the elements follow each other. It returns false and leaves runs
// unchanged if a slice would have fewer than least bytes, and for placeholders. Writing to
// the slices writes to the tensor.
func (t *Tensor) AppendRuns(runs [][]byte, least int64) ([][]byte, bool) {
	size, run, outer := t.size(), int64(1), len(t.shape)
	for outer > 0 && (t.shape[outer-1] == 1 || t.strides[outer-1] == run) {
		outer--
		run *= t.shape[outer]
	}

	switch {
	case t.placeholder:
		return runs, false
	case t.NumElements() == 0:
		return runs, true
	case run*size < least:
		return runs, false
	}

	index := make([]int64, outer)
	for at := t.offset; ; {
		runs = append(runs, t.data[at*size:(at+run)*size:(at+run)*size])
		d := outer - 1
		for ; d >= 0; d-- {
			at += t.strides[d]
			if index[d]++; index[d] < t.shape[d] {
				break
			}
			at -= t.shape[d] * t.strides[d]
			index[d] = 0
		}

		if d < 0 {
			return runs, true
		}
	}
}

// Contents returns the elements as contiguous little-endian bytes: t's own
// memory if t is contiguous, a copy otherwise. Do not write to the bytes. The copy of
// an expanded view repeats its elements.
func (t *Tensor) Contents() []byte {
	if mem, ok := t.Bytes(); ok {
		return mem
	}
	return t.Clone().data
}

// Clone returns a contiguous copy of t in memory of its own.
func (t *Tensor) Clone() *Tensor {
	out := contiguous(t.dtype, t.shape, make([]byte, t.NumBytes()))
	copyElements(out, t)
	return out
}

// ReadAt copies the bytes [off, off+len(p)) of t's contiguous little-endian form
// into p. Neither end needs to lie between elements. The error wraps [ErrShape]
// if the interval leaves the tensor; p is then as it was.
func (t *Tensor) ReadAt(p []byte, off int64) error {
	if n := t.NumBytes(); off < 0 || off > n || int64(len(p)) > n-off {
		return fmt.Errorf("read %v: %w: %d bytes at %d of %d", t, ErrShape, len(p), off, n)
	}
	if mem, ok := t.Bytes(); ok {
		copy(p, mem[off:])
		return nil
	}

	size := t.size()
	if skip := off % size; skip != 0 {
		n := min(size-skip, int64(len(p)))
		copy(p[:n], t.element(off / size)[skip:])
		p, off = p[n:], off+n
	}

	lo, whole := off/size, int64(len(p))/size
	t.gather(p[:whole*size], lo, lo+whole)
	if rest := p[whole*size:]; len(rest) > 0 {
		copy(rest, t.element(lo+whole))
	}
	return nil
}

// Equal reports whether a and b have the same dtype, shape and bytes. It
// compares bits: a NaN equals itself, and the two zeros differ.
func Equal(a, b *Tensor) bool {
	if a.dtype != b.dtype || !slices.Equal(a.shape, b.shape) {
		return false
	}

	n, step := a.NumElements(), int64(compareBytes)/a.size()
	scratchA, scratchB := a.scratch(min(n, step)), b.scratch(min(n, step))
	for lo := int64(0); lo < n; lo += step {
		hi := min(lo+step, n)
		if !bytes.Equal(a.stretch(scratchA, lo, hi), b.stretch(scratchB, lo, hi)) {
			return false
		}
	}

	return true
}

var _ io.WriterTo = (*Tensor)(nil)

// WriteTo writes the elements as contiguous little-endian bytes, like
// [Tensor.Contents]. It copies a piece at a time if t is not contiguous.
func (t *Tensor) WriteTo(w io.Writer) (int64, error) {
	if mem, ok := t.Bytes(); ok {
		n, err := w.Write(mem)
		return int64(n), err
	}

	total, done := t.NumBytes(), int64(0)
	buf := make([]byte, min(total, maxPiece))
	for done < total {
		p := buf[:min(int64(len(buf)), total-done)]
		if err := t.ReadAt(p, done); err != nil {
			return done, err
		}
		n, err := w.Write(p)
		done += int64(n)
		if err != nil {
			return done, err
		}
	}

	return done, nil
}

// ErrPlaceholder reports a tensor without memory that was to be filled or saved.
var ErrPlaceholder = errors.New("tensor is a placeholder without memory")

// Placeholder returns a tensor that has a dtype and a shape and next to no
// memory, like a tensor on PyTorch's meta device. Its elements read as zero.
// [Copy] and [Convert] do not write to it until [Tensor.Materialize] gives it
// memory. A tensor without elements needs no memory and is not a placeholder.
func Placeholder(d DType, shape []int64) (*Tensor, error) {
	zero, err := New(d, nil)
	if err != nil {
		return nil, fmt.Errorf("placeholder: %w", err)
	}

	t, err := zero.Expand(shape)
	if err != nil {
		return nil, fmt.Errorf("placeholder: %w", err)
	}

	t.placeholder = t.NumElements() > 0
	return t, nil
}

// IsPlaceholder reports whether t has no memory: [Placeholder] made it, or it is
// a view of such a tensor, and [Tensor.Materialize] was not called.
func (t *Tensor) IsPlaceholder() bool { return t.placeholder }

// Materialize gives a placeholder memory of its own, filled with zeros. Every
// holder of the pointer t sees it; views that were made before remain
// placeholders. A tensor that has memory stays as it is. It returns the error of
// [New]. It is not safe for concurrent use with other methods of t.
func (t *Tensor) Materialize() error {
	if !t.placeholder {
		return nil
	}
	m, err := New(t.dtype, t.shape)
	if err != nil {
		return fmt.Errorf("materialize: %w", err)
	}
	*t = *m
	return nil
}

// reversed returns a copy of t with dimension d backwards.
func (t *Tensor) reversed(d int) (*Tensor, error) {
	if t.placeholder {
		return t, nil
	}

	out, err := New(t.dtype, t.shape)
	if err != nil {
		return nil, err
	}

	from, to := tensorRow(t, d), tensorRow(out, d)
	for i := range t.shape[d] {
		copyElements(to(t.shape[d]-1-i), from(i))
	}

	return out, nil
}
