package tensor

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unsafe"
)

// ErrCast reports a change of dtype that the [CastPolicy] forbids.
var ErrCast = errors.New("cast not allowed")

// CastPolicy says which changes of dtype [Convert] may make.
type CastPolicy uint8

// The policies.
const (
	// CastInRange rounds, but does not lose numbers. It allows a cast from float to float, from
	// complex to complex and from any real type to complex. It allows a cast from an integer if
	// each element is in the range of the target. It refuses a cast from float to integer or
	// bool, from complex to real, and to float8_e8m0fnu, which has no sign and no zero, unless
	// every value of the source's type is kept. A float that is too large for a smaller float
	// type becomes the number that [Convert] documents: mostly an infinity, as IEEE 754 rounds
	// it.
	CastInRange CastPolicy = iota
	CastAny                // any dtype to any other
	CastWiden              // only if [CanWiden] holds
	CastNone               // the dtypes must be equal
)

var castNames = [...]string{CastInRange: "in-range", CastAny: "any", CastWiden: "widen", CastNone: "none"}

// String returns the name of p, such as "in-range".
func (p CastPolicy) String() string {
	if int(p) < len(castNames) {
		return castNames[p]
	}
	return fmt.Sprintf("CastPolicy(%d)", uint8(p))
}

// MarshalText returns the name of p.
func (p CastPolicy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText sets p to the policy of a name.
func (p *CastPolicy) UnmarshalText(name []byte) error {
	i := slices.Index(castNames[:], string(name))
	if i < 0 {
		return fmt.Errorf("unknown cast policy %q; want one of %s", name, strings.Join(castNames[:], ", "))
	}
	*p = CastPolicy(i)
	return nil
}

// Check returns an error that wraps [ErrCast] unless p allows a cast between
// the two dtypes. Equal ones are always allowed. With CastInRange, a cast that Check
// allows can still fail: it depends on the elements.
func (p CastPolicy) Check(from, to DType) error {
	switch {
	case !from.Valid() || !to.Valid():
		return fmt.Errorf("cast %v to %v: %w", from, to, ErrDType)
	case from == to || p == CastAny || p == CastWiden && CanWiden(from, to):
		return nil
	case p == CastInRange:
		if why := drops(from, to); why != "" {
			return fmt.Errorf("cast %v to %v: %w: %s; %s", from, to, ErrCast, why, anyAllows)
		}
		return nil
	case p == CastWiden:
		return fmt.Errorf("cast %v to %v: %w: not every value would be kept", from, to, ErrCast)
	}
	return fmt.Errorf("cast %v to %v: %w", from, to, ErrCast)
}

// anyAllows names the remedy for users of every front end: LoadOptions.Cast in Go, cast="any"
// in Python and --cast any of the command.
const anyAllows = "the option cast=any allows it"

// drops names the part of a number that any cast between two dtypes loses, or returns "" if
// the elements decide.
func drops(from, to DType) string {
	switch {
	case CanWiden(from, to):
		return ""
	case to == Float8E8M0FNU:
		return "it has no sign and no zero"
	case from.IsComplex() && !to.IsComplex():
		return "the imaginary parts would be lost"
	case from.IsFloat() && (to.IsInteger() || to == Bool):
		return "the fractions would be lost"
	}
	return ""
}

// Into returns the policy for a cast into dst: CastAny if p is CastInRange and dst is
// a result of [Tensor.Lossy], and p otherwise.
func (p CastPolicy) Into(dst *Tensor) CastPolicy {
	if p == CastInRange && dst.lossy {
		return CastAny
	}
	return p
}

// Lossy returns a view of the same memory into which [Convert] casts as with CastAny, also if
// its caller passes CastInRange. A planner for a caller that wants lossy casts returns it to
// the reader of a checkpoint. Views of the result are lossy, too.
func (t *Tensor) Lossy() *Tensor {
	v := *t
	v.lossy = true
	return &v
}

const (
	// stageElements is how many elements Convert gathers at a time from a view
	// that it cannot read in place: enough to gather whole cache lines, and few
	// enough for the second-level cache.
	stageElements = 32 << 10
	// directRun is the least number of elements that follow each other on both
	// sides for which Convert works in place.
	directRun = 64
)

// Convert copies src's elements into dst and changes their dtype to dst's. The
// shapes must be equal, p must allow the cast, and the rules of [Copy] for dst and for
// overlaps hold. Equal dtypes are copied bit by bit. If the error wraps [ErrCast], dst
// has not changed.
//
// The results equal PyTorch's Tensor.to:
//
//   - A float that the target cannot hold is rounded to the nearest, ties to even,
//     in one step from any source. (PyTorch converts float64 and large integers to
//     small floats through float32, which rounds twice.)
//   - A NaN stays a NaN. A number that is too large becomes an infinity; without
//     infinities, it becomes NaN in both fnuz types, and the largest number in
//     float8_e4m3fn, as in current PyTorch (older versions: NaN). The fnuz types
//     have no negative zero.
//   - float8_e8m0fnu holds positive powers of two and NaN. A number loses its sign
//     and becomes the nearest power of two; three halves of a power become the next
//     one. Zero and numbers below 2^-127 become 2^-127, numbers between 2^-127 and
//     2^-126 become 2^-126. Infinities and numbers that are too large become NaN.
//   - A float to an integer loses its fraction. If it is out of range, which
//     PyTorch leaves undefined, it becomes the closest integer, and NaN becomes zero.
//   - An integer that the target cannot hold loses its upper bits.
//   - A number to a bool is true unless it is zero (NaN is true); a bool becomes
//     zero or one.
//   - A complex number to a real one loses its imaginary part, except to a bool. A
//     real number to a complex one gets the imaginary part zero.
func Convert(dst, src *Tensor, p CastPolicy) error {
	if err := checkPair("convert", dst, src); err != nil {
		return err
	}

	p = p.Into(dst)
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
	if p == CastInRange && src.dtype.IsInteger() && !CanWiden(src.dtype, dst.dtype) {
		if err := src.checkRange(dst.dtype); err != nil {
			return err
		}
	}

	k := kernelFor(src.dtype, dst.dtype)
	axes, run := splitRun(axesOf(dst, src))
	if run < min(directRun, n) || !dst.aligned() || !src.aligned() {
		convertStaged(dst, src, k)
		return nil
	}

	to, from := dst.memory(), src.memory()
	for c := startAt(axes); c.more; c.next() {
		d, s := c.dst*dst.size(), c.src*src.size()
		k(to[d:d+run*dst.size()], from[s:s+run*src.size()])
	}

	return nil
}

// convertStaged gathers, converts and scatters stageElements at a time.
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

// checkRange returns an error if an element of t, which has integers, is out of the range
// of another dtype. It reads all elements, which no other cast needs: floats are only rounded.
func (t *Tensor) checkRange(to DType) error {
	low, high := rangeOf(to)
	n := t.NumElements()
	step := min(n, stageElements)
	buf := t.scratch(step)
	for lo := int64(0); lo < n; lo += step {
		if v := outside[t.dtype](t.stretch(buf, lo, min(lo+step, n)), low, high); v != "" {
			return fmt.Errorf("cast %v to %v: %w: %s is not between %d and %d; %s", t.dtype, to, ErrCast, v, low, high, anyAllows)
		}
	}

	return nil
}

// rangeOf returns the lowest and the highest integer that a dtype holds, which is not
// complex. For floats they may be between two values of the type; of large floats, they
// are the limits of all integers.
func rangeOf(d DType) (low int64, high uint64) {
	switch d {
	case Bool:
		return 0, 1
	case Float16:
		return -65504, 65504
	case Float8E4M3FN:
		return -448, 448
	case Float8E4M3FNUZ:
		return -240, 240
	case Float8E5M2, Float8E5M2FNUZ:
		return -57344, 57344
	case Int64, Int32, Int16, Int8:
		bits := 8*d.Size() - 1
		return math.MinInt64 >> (63 - bits), math.MaxInt64 >> (63 - bits)
	case Uint32, Uint16, Uint8:
		return 0, math.MaxUint64 >> (64 - 8*d.Size())
	case Uint64:
		return 0, math.MaxUint64
	}
	return math.MinInt64, math.MaxUint64
}

// outside returns, for each dtype of integers, a function that returns the first element
// outside [low, high] in decimal, or "".
var outside = [...]func(p []byte, low int64, high uint64) string{
	Int64: firstOutside[int64], Int32: firstOutside[int32], Int16: firstOutside[int16], Int8: firstOutside[int8],
	Uint64: firstOutside[uint64], Uint32: firstOutside[uint32], Uint16: firstOutside[uint16], Uint8: firstOutside[uint8],
}

func firstOutside[S integer](p []byte, low int64, high uint64) string {
	lowest, highest := limits[S]()
	if int64(lowest) < low {
		lowest = S(low)
	}
	if uint64(highest) > high {
		highest = S(high)
	}

	for _, v := range elements[S](p) {
		if v < lowest || v > highest {
			return fmt.Sprint(v)
		}
	}

	return ""
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
// has room for all elements of src. A kernel may own memory: it is for one goroutine.
type kernel func(dst, src []byte)

// kernelFor returns the kernel of a pair of dtypes, nil if they are equal. Common pairs have
// a loop of their own. The other kernels join two loops: the dtype between them holds every
// value of the source, or at least the bits that the second loop needs to round correctly.
func kernelFor(from, to DType) kernel {
	switch f, t := complexes[from], complexes[to]; {
	case from == to:
		return nil
	case from.IsComplex() && to.IsComplex():
		return kernelFor(f.part, t.part) // on both parts
	case from.IsComplex() && to == Bool:
		return f.toBool
	case from.IsComplex():
		return join(from, f.part, to, f.toPart, kernelFor(f.part, to))
	case to.IsComplex():
		return join(from, t.part, to, kernelFor(from, t.part), t.fromPart)
	case from.isSmall():
		return join(from, Float32, to, fromSmall(from), kernelFor(Float32, to))
	case to.isSmall():
		return join(from, Float32, to, roundToOdd(from), toSmall(to))
	case from == Bool:
		return join(from, Uint8, to, anyToBool[uint8], kernelFor(Uint8, to))
	}
	return numberKernels[from](to)
}

// chainElements is how many elements pass through the middle of two joined kernels
// at a time: they stay in the nearest cache.
const chainElements = 1024

// join returns the kernel that applies first and then second. Either may be nil.
func join(from, mid, to DType, first, second kernel) kernel {
	if first == nil {
		return second
	}
	if second == nil {
		return first
	}

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

// numberKernels returns, for each dtype that is a number in Go, its kernels to the
// others and to bool.
var numberKernels = [...]func(to DType) kernel{
	Float64: fromFloat[float64], Float32: fromFloat[float32],
	Int64: fromInteger[int64], Int32: fromInteger[int32], Int16: fromInteger[int16], Int8: fromInteger[int8],
	Uint64: fromInteger[uint64], Uint32: fromInteger[uint32], Uint16: fromInteger[uint16], Uint8: fromInteger[uint8],
}

func fromFloat[S float](to DType) kernel {
	return [...]kernel{
		Float64: plainCast[float64, S], Float32: plainCast[float32, S],
		Int64: truncate[int64, S], Int32: truncate[int32, S], Int16: truncate[int16, S], Int8: truncate[int8, S],
		Uint64: truncate[uint64, S], Uint32: truncate[uint32, S], Uint16: truncate[uint16, S], Uint8: truncate[uint8, S],
		Bool: anyToBool[S],
	}[to]
}

func fromInteger[S integer](to DType) kernel {
	return [...]kernel{
		Float64: plainCast[float64, S], Float32: plainCast[float32, S],
		Int64: plainCast[int64, S], Int32: plainCast[int32, S], Int16: plainCast[int16, S], Int8: plainCast[int8, S],
		Uint64: plainCast[uint64, S], Uint32: plainCast[uint32, S], Uint16: plainCast[uint16, S], Uint8: plainCast[uint8, S],
		Bool: anyToBool[S],
	}[to]
}

// plainCast is for pairs of types that Go converts as Convert promises: integers lose their
// upper bits, floats are rounded once.
func plainCast[D, S Number](dst, src []byte) {
	s := elements[S](src)
	d := elements[D](dst)[:len(s)]
	for i, v := range s {
		d[i] = D(v)
	}
}

// truncate drops fractions. Go does not define the conversion of a float outside the
// integer's range, so such floats never reach it.
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

func anyToBool[S Number](dst, src []byte) {
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

// roundToOdd returns a kernel to float32, for results that are rounded a second time: bits
// that do not fit set the last bit. Rounded again to a float that is at least two bits
// shorter, the result equals the source rounded once.
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
			b-- // back to the truncated number; from infinity, too
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

// complexes has the kernels of the complex dtypes. A complex number is two floats in
// a row, the real part first.
var complexes = map[DType]struct {
	part                     DType
	toPart, fromPart, toBool kernel
}{
	Complex64:  {Float32, takeReal[float32], putReal[float32], eitherPart[float32]},
	Complex128: {Float64, takeReal[float64], putReal[float64], eitherPart[float64]},
}

func takeReal[F float](dst, src []byte) {
	d, s := elements[F](dst), elements[F](src)
	for i := range len(s) / 2 {
		d[i] = s[2*i]
	}
}

func putReal[F float](dst, src []byte) {
	d := elements[F](dst)
	for i, v := range elements[F](src) {
		d[2*i], d[2*i+1] = v, 0
	}
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
