package tensor

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// ErrCast reports a change of dtype that the [CastPolicy] forbids.
var ErrCast = errors.New("cast not allowed")

// CastPolicy says which changes of dtype [Convert] may make.
type CastPolicy uint8

// The policies. A zero CastPolicy allows every cast.
const (
	CastAny   CastPolicy = iota // any dtype to any other
	CastWiden                   // only if [CanWiden] holds
	CastNone                    // the dtypes must be equal
)

// Check returns an error that wraps [ErrCast] unless p allows a cast between
// the two dtypes. Equal ones are always allowed.
func (p CastPolicy) Check(from, to DType) error {
	switch {
	case !from.Valid() || !to.Valid():
		return fmt.Errorf("cast %v to %v: %w", from, to, ErrDType)
	case from == to || p == CastAny || p == CastWiden && CanWiden(from, to):
		return nil
	case p == CastWiden:
		return fmt.Errorf("cast %v to %v: %w: not every value would be kept", from, to, ErrCast)
	}
	return fmt.Errorf("cast %v to %v: %w", from, to, ErrCast)
}

// stageElements is how many elements Convert gathers at a time from a view that
// it cannot read in place: enough that gathering turns whole lines of memory,
// few enough for the second-level cache.
const stageElements = 32 << 10

// directRun is the least number of elements that follow each other on both
// sides for which Convert works in place.
const directRun = 64

// Convert copies src's elements into dst and changes their dtype to dst's. The
// shapes must be equal, p must allow the cast, and dst must be fit for [Copy],
// whose words on overlaps hold here too. Equal dtypes are copied bit by bit.
//
// Values become what PyTorch's Tensor.to makes of them:
//
//   - A float that the target cannot hold is rounded to the nearest, ties to
//     even, in one step from any source: PyTorch goes through float32 on the way
//     from float64 and the large integers to the small floats, cairn does not.
//   - A NaN stays a NaN. What is too large becomes an infinity, or if the
//     target has none NaN in both fnuz kinds, and the largest number in
//     float8_e4m3fn, as in today's PyTorch; older ones make NaN of it. The fnuz
//     kinds have no negative zero.
//   - float8_e8m0fnu holds positive powers of two and NaN. A number loses its sign
//     and becomes the nearest power of two; three halves of a power become the next
//     one. Zero and numbers below 2^-127 become 2^-127, numbers between 2^-127 and
//     2^-126 become 2^-126. Infinities and numbers that are too large become NaN.
//     PyTorch does the same.
//   - A float loses its fraction on the way to an integer. PyTorch leaves it open
//     what becomes of one outside the integer's range; here it becomes the closest
//     integer there is, and NaN becomes zero.
//   - An integer that the target cannot hold loses its upper bits.
//   - Anything becomes a bool by asking whether it differs from zero (NaN does); a
//     bool becomes zero or one.
//   - A complex number loses its imaginary part on the way to a real one, except to
//     a bool, and a real one gets the imaginary part zero.
func Convert(dst, src *Tensor, p CastPolicy) error {
	if err := checkPair("convert", dst, src); err != nil {
		return err
	}
	if err := p.Check(src.dtype, dst.dtype); err != nil {
		return fmt.Errorf("convert %v to %v: %w", src, dst, err)
	}
	n := dst.NumElements()
	if n == 0 {
		return nil
	}
	if dst.dtype == src.dtype {
		copyElements(dst, src)
		return nil
	}
	k := kernelFor(src.dtype, dst.dtype)
	axes, run := splitRun(axesOf(dst, src))
	if run >= min(directRun, n) && dst.aligned() && src.aligned() {
		convertRuns(dst, src, k, run, axes)
		return nil
	}
	convertStaged(dst, src, k)
	return nil
}

// convertRuns converts in place if elements follow each other on both sides.
func convertRuns(dst, src *Tensor, k kernel, run int64, axes []axis) {
	to, from := dst.memory(), src.memory()
	for c := startAt(axes); c.more; c.next() {
		d, s := c.dst*dst.size(), c.src*src.size()
		k(to[d:d+run*dst.size()], from[s:s+run*src.size()])
	}
}

// convertStaged gathers, converts and scatters a stretch after the other.
func convertStaged(dst, src *Tensor, k kernel) {
	n := dst.NumElements()
	step := min(n, stageElements)
	from, to := src.scratch(step), dst.scratch(step)
	for lo := int64(0); lo < n; lo += step {
		hi := min(lo+step, n)
		out := dst.room(to, lo, hi)
		k(out, src.stretch(from, lo, hi))
		if to != nil {
			dst.scatter(out, lo, hi)
		}
	}
}

// Cast returns t with elements of dtype d: t itself if it has that dtype, else
// a contiguous copy made by [Convert].
func Cast(t *Tensor, d DType) (*Tensor, error) {
	if t.dtype == d {
		return t, nil
	}
	out, err := New(d, t.shape)
	if err != nil {
		return nil, fmt.Errorf("cast %v: %w", t, err)
	}
	if err := Convert(out, t, CastAny); err != nil {
		return nil, err
	}
	return out, nil
}

// CastFloat is [Cast] for floating-point tensors; any other is returned as it is.
func CastFloat(t *Tensor, d DType) (*Tensor, error) {
	if !t.dtype.IsFloat() {
		return t, nil
	}
	return Cast(t, d)
}

// Shape returns sizes as the shape of a tensor, in new memory. The error is that
// of [NumElements], also for a size that does not fit an int64.
func Shape[I int | int32 | int64 | uint32 | uint64](sizes []I) ([]int64, error) {
	shape := make([]int64, len(sizes))
	for i, n := range sizes {
		if n > 0 && uint64(n) > math.MaxInt64 {
			return nil, fmt.Errorf("%w: dimension %d of %d", ErrShape, i, n)
		}
		shape[i] = int64(n)
	}
	if _, err := NumElements(shape); err != nil {
		return nil, err
	}
	return shape, nil
}

// A kernel converts contiguous, aligned elements of one dtype into another; dst
// has room for as many as src holds.
type kernel func(dst, src []byte)

// chainElements is how many elements pass through the middle of a chain at a
// time: they stay in the nearest cache.
const chainElements = 1024

// kernelFor returns the kernel of a pair of different dtypes. Pairs that occur
// all the time have a loop of their own; the others are chained from two loops
// whose middle loses nothing, or keeps what the second has to know to round as
// if it had seen the first's source. The kernel may hold memory: it is for one
// goroutine.
func kernelFor(from, to DType) kernel {
	switch {
	case from.IsComplex() && to.IsComplex():
		return kernelFor(partOf(from), partOf(to)) // twice as many parts
	case from.IsComplex() && to == Bool:
		return complexToBool(from)
	case from.IsComplex():
		return chain(from, partOf(from), to, dropImaginary(from))
	case to.IsComplex():
		return chainInto(from, partOf(to), to, addImaginary(to))
	case from.isSmall() && to == Float32:
		return fromSmall(from)
	case from == Float32 && to.isSmall():
		return toSmall(to)
	case from.isSmall():
		return chain(from, Float32, to, fromSmall(from))
	case to.isSmall():
		return join(from, Float32, to, roundToOdd(from), toSmall(to))
	}
	return numberKernel(from, to)
}

// chain goes on with the usual kernel after first.
func chain(from, mid, to DType, first kernel) kernel {
	if mid == to {
		return first
	}
	return join(from, mid, to, first, kernelFor(mid, to))
}

// chainInto comes to last by the usual kernel.
func chainInto(from, mid, to DType, last kernel) kernel {
	if from == mid {
		return last
	}
	return join(from, mid, to, kernelFor(from, mid), last)
}

func join(from, mid, to DType, first, second kernel) kernel {
	buf := make([]byte, chainElements*mid.Size())
	return func(dst, src []byte) {
		for len(src) > 0 {
			n := min(len(src)/from.Size(), chainElements)
			between := buf[:n*mid.Size()]
			first(between, src[:n*from.Size()])
			second(dst[:n*to.Size()], between)
			dst, src = dst[n*to.Size():], src[n*from.Size():]
		}
	}
}

// fromSmall returns the kernel to float32, which holds every small float
// exactly.
func fromSmall(from DType) kernel {
	switch from {
	case Float16:
		return float16ToFloat32
	case BFloat16:
		return bfloat16ToFloat32
	}
	return float8ToFloat32(from)
}

// toSmall returns the kernel from float32.
func toSmall(to DType) kernel {
	switch to {
	case Float16:
		return float32ToFloat16
	case BFloat16:
		return float32ToBFloat16
	}
	return float32ToFloat8(to)
}

type integer interface {
	int64 | int32 | int16 | int8 | uint64 | uint32 | uint16 | uint8
}

type float interface{ float64 | float32 }

type number interface{ integer | float }

// numberKernel returns the kernel between the dtypes that are numbers in Go,
// and bool.
func numberKernel(from, to DType) kernel {
	switch from {
	case Float64:
		return fromFloat[float64](to)
	case Float32:
		return fromFloat[float32](to)
	case Int64:
		return fromInteger[int64](to)
	case Int32:
		return fromInteger[int32](to)
	case Int16:
		return fromInteger[int16](to)
	case Int8:
		return fromInteger[int8](to)
	case Uint64:
		return fromInteger[uint64](to)
	case Uint32:
		return fromInteger[uint32](to)
	case Uint16:
		return fromInteger[uint16](to)
	case Uint8:
		return fromInteger[uint8](to)
	}
	return join(Bool, Uint8, to, anyToBool[uint8], fromInteger[uint8](to))
}

func fromFloat[S float](to DType) kernel {
	switch to {
	case Float64:
		return plainCast[float64, S]
	case Float32:
		return plainCast[float32, S]
	case Int64:
		return truncate[int64, S]
	case Int32:
		return truncate[int32, S]
	case Int16:
		return truncate[int16, S]
	case Int8:
		return truncate[int8, S]
	case Uint64:
		return truncate[uint64, S]
	case Uint32:
		return truncate[uint32, S]
	case Uint16:
		return truncate[uint16, S]
	case Uint8:
		return truncate[uint8, S]
	}
	return anyToBool[S]
}

func fromInteger[S integer](to DType) kernel {
	switch to {
	case Float64:
		return plainCast[float64, S]
	case Float32:
		return plainCast[float32, S]
	case Int64:
		return plainCast[int64, S]
	case Int32:
		return plainCast[int32, S]
	case Int16:
		return plainCast[int16, S]
	case Int8:
		return plainCast[int8, S]
	case Uint64:
		return plainCast[uint64, S]
	case Uint32:
		return plainCast[uint32, S]
	case Uint16:
		return plainCast[uint16, S]
	case Uint8:
		return plainCast[uint8, S]
	}
	return anyToBool[S]
}

// plainCast is for the pairs whose Go conversion is what Convert promises:
// integers lose their upper bits, floats are rounded once.
func plainCast[D, S number](dst, src []byte) {
	s := elements[S](src)
	d := elements[D](dst)[:len(s)]
	for i, v := range s {
		d[i] = D(v)
	}
}

// truncate drops fractions. Go leaves open what becomes of a float outside the
// integer's range, so those never reach the conversion.
func truncate[D integer, S float](dst, src []byte) {
	lowest, highest := limits[D]()
	floor, ceiling := S(lowest), S(highest/2+1)*2 // the ceiling as a float is just out of range
	s := elements[S](src)
	d := elements[D](dst)[:len(s)]
	for i, v := range s {
		switch {
		case v > floor && v < ceiling:
			d[i] = D(v)
		case v >= ceiling:
			d[i] = highest
		case v <= floor:
			d[i] = lowest
		default:
			d[i] = 0
		}
	}
}

func limits[D integer]() (lowest, highest D) {
	ones := ^D(0)
	if ones > 0 {
		return 0, ones
	}
	highest = D(uint64(math.MaxUint64) >> (65 - 8*unsafe.Sizeof(ones)))
	return -highest - 1, highest
}

func anyToBool[S number](dst, src []byte) {
	s := elements[S](src)
	d := dst[:len(s)]
	for i, v := range s {
		var b uint8
		if v != 0 {
			b = 1
		}
		d[i] = b
	}
}

// roundToOdd returns a kernel to float32 for sources that do not fit one, made
// for a second rounding: the bits that do not fit leave a one in the last place.
// Rounded again to a float that is at least two bits shorter, the result is that
// of rounding the source once.
func roundToOdd(from DType) kernel {
	switch from {
	case Float64:
		return oddFloats
	case Int64:
		return oddIntegers[int64]
	case Int32:
		return oddIntegers[int32]
	case Uint64:
		return oddIntegers[uint64]
	case Uint32:
		return oddIntegers[uint32]
	}
	return kernelFor(from, Float32) // exact
}

func oddFloats(dst, src []byte) {
	s := elements[float64](src)
	d := elements[float32](dst)[:len(s)]
	for i, v := range s {
		f := float32(v)
		if float64(f) == v || v != v {
			d[i] = f
			continue
		}
		b := math.Float32bits(f)
		if math.Abs(float64(f)) > math.Abs(v) {
			b-- // back to what truncation gives; from infinity, too
		}
		d[i] = math.Float32frombits(b | 1)
	}
}

func oddIntegers[S integer](dst, src []byte) {
	s := elements[S](src)
	d := elements[float32](dst)[:len(s)]
	for i, v := range s {
		m := uint64(v)
		if v < 0 {
			m = -m
		}
		if over := bits.Len64(m) - 24; over > 0 {
			lost := m & (1<<over - 1)
			m -= lost
			if lost != 0 {
				m |= 1 << over
			}
		}
		d[i] = float32(m)
		if v < 0 {
			d[i] = -d[i]
		}
	}
}

// A complex number is two floats in a row, the real part first; the kernels here
// see it as that.

// partOf returns the dtype of the two parts of a complex one.
func partOf(d DType) DType {
	if d == Complex64 {
		return Float32
	}
	return Float64
}

// dropImaginary returns the kernel to the dtype of the parts.
func dropImaginary(from DType) kernel {
	if from == Complex64 {
		return takeReal[float32]
	}
	return takeReal[float64]
}

func takeReal[F float](dst, src []byte) {
	d, s := elements[F](dst), elements[F](src)
	for i := range len(s) / 2 {
		d[i] = s[2*i]
	}
}

// addImaginary returns the kernel from the dtype of the parts.
func addImaginary(to DType) kernel {
	if to == Complex64 {
		return putReal[float32]
	}
	return putReal[float64]
}

func putReal[F float](dst, src []byte) {
	d := elements[F](dst)
	for i, v := range elements[F](src) {
		d[2*i], d[2*i+1] = v, 0
	}
}

func complexToBool(from DType) kernel {
	if from == Complex64 {
		return eitherPart[float32]
	}
	return eitherPart[float64]
}

func eitherPart[F float](dst, src []byte) {
	s := elements[F](src)
	for i := range len(s) / 2 {
		var b uint8
		if s[2*i] != 0 || s[2*i+1] != 0 {
			b = 1
		}
		dst[i] = b
	}
}
