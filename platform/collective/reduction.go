package collective

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Op says how the elements of several ranks become one.
//
// Integers wrap. Floats of 16 and 8 bits are reduced as float32 and rounded once.
// Max and Min return NaN if any rank has one. For bools Sum and Max are "or", Prod and
// Min "and". Avg of integers and bools, Max and Min of complex numbers, and every
// reduction of float8_e8m0fnu are errors that wrap [tensor.ErrDType].
type Op uint8

// The ways to reduce.
const (
	Sum Op = iota
	Avg
	Max
	Min
	Prod
)

var opNames = [...]string{Sum: "sum", Avg: "avg", Max: "max", Min: "min", Prod: "prod"}

// String returns the name, such as "sum".
func (o Op) String() string {
	if int(o) >= len(opNames) {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return opNames[o]
}

// Check returns an error if elements of type d cannot be reduced by o.
func (o Op) Check(d tensor.DType) error {
	switch {
	case int(o) >= len(opNames):
		return fmt.Errorf("reduce by %v: %w", o, group.ErrInvalid)
	case !o.fits(d):
		return fmt.Errorf("%v of %v: %w", o, d, tensor.ErrDType)
	}
	return nil
}

func (o Op) fits(d tensor.DType) bool {
	switch {
	case !d.Valid() || d == tensor.Float8E8M0FNU:
		return false
	case d.IsComplex():
		return o != Max && o != Min
	case d.IsInteger() || d == tensor.Bool:
		return o != Avg
	}
	return true
}

// reduction is how elements of type elem become one: partial results are of type
// sum. It is for one goroutine.
type reduction struct {
	op        Op
	elem, sum tensor.DType
	ranks     int
	apply     kernel
}

// newReduction returns the reduction of elements of type d. Floats that Go has no type
// for are added up as float32.
func newReduction(o Op, d tensor.DType, ranks int) *reduction {
	s := d
	if d.IsFloat() && d.Size() < tensor.Float32.Size() {
		s = tensor.Float32
	}
	apply := kernels[s](o)
	if (s == tensor.Float32 || s == tensor.Complex64) && (o == Sum || o == Avg) {
		apply = sumFloat32 // on both parts of a complex number
	}
	return &reduction{op: o, elem: d, sum: s, ranks: ranks, apply: apply}
}

// widens reports whether partial results are larger than elements.
func (r *reduction) widens() bool { return r.elem != r.sum }

// sumBytes returns how many bytes partial results take for b bytes of elements.
func (r *reduction) sumBytes(b int) int { return b / r.elem.Size() * r.sum.Size() }

// widen returns elements as partial results: b itself or, if those are of
// another type, room filled with them.
func (r *reduction) widen(room, b []byte) []byte {
	if !r.widens() {
		return b
	}
	room = room[:r.sumBytes(len(b))]
	convert(room, r.sum, b, r.elem)
	return room
}

// add adds the elements b to the partial result sum; room is for b as partial
// results.
func (r *reduction) add(sum, b, room []byte) {
	if r.elem == tensor.BFloat16 && (r.op == Sum || r.op == Avg) {
		addBFloat16(sum, b)
		return
	}
	r.apply(sum, sum, r.widen(room, b))
}

// finish makes elements of the partial result s of all ranks. dst may be s
// if partial results are elements.
func (r *reduction) finish(dst, s []byte) {
	if r.op == Avg {
		divide(s, r.sum, r.ranks)
	}

	if r.widens() {
		convert(dst, r.elem, s, r.sum)
		return
	}

	if len(s) > 0 && &dst[0] != &s[0] {
		copy(dst, s)
	}
}

// convert changes the type of elements. It cannot fail, since dst and src have equally
// many elements.
func convert(dst []byte, to tensor.DType, src []byte, from tensor.DType) {
	shape := []int64{int64(len(src) / from.Size())}
	d, err := tensor.FromBytes(to, shape, dst)
	if err != nil {
		panic(err)
	}

	s, err := tensor.FromBytes(from, shape, src)
	if err != nil {
		panic(err)
	}

	if err := tensor.Convert(d, s, tensor.CastAny); err != nil {
		panic(err)
	}
}

// Reduce sets the elements of dst to the reduction of the elements of the terms, of which
// there is at least one, in their order. All have the same dtype and shape; the error wraps
// [tensor.ErrDType] or [tensor.ErrShape] otherwise. dst may be one of the terms. It is local:
// it sends no messages.
func Reduce(dst *tensor.Tensor, o Op, terms ...*tensor.Tensor) error {
	d := dst.DType()
	if err := o.Check(d); err != nil {
		return err
	}

	if len(terms) == 0 {
		return fmt.Errorf("%v of no tensor: %w", o, tensor.ErrShape)
	}

	for _, t := range terms {
		switch {
		case t.DType() != d:
			return fmt.Errorf("%v of %v into %v: %w", o, t, dst, tensor.ErrDType)
		case !slices.Equal(t.Shape(), dst.Shape()):
			return fmt.Errorf("%v of %v into %v: %w", o, t, dst, tensor.ErrShape)
		case t.IsPlaceholder():
			return fmt.Errorf("%v of %v: %w", o, t, tensor.ErrPlaceholder)
		}
	}

	r := newReduction(o, d, len(terms))
	n := int(dst.NumBytes())
	out, sum, room := make([]byte, n), make([]byte, r.sumBytes(n)), make([]byte, r.sumBytes(n))
	if r.widens() {
		r.widen(sum, terms[0].Contents())
	} else {
		sum = out
		copy(sum, terms[0].Contents())
	}

	for _, t := range terms[1:] {
		b := t.Contents()
		if !d.Aligned(b) {
			b = bytes.Clone(b)
		}
		r.add(sum, b, room)
	}

	r.finish(out, sum)
	result, err := tensor.FromBytes(d, dst.Shape(), out)
	if err != nil {
		return err
	}
	return tensor.Copy(dst, result)
}

// kernel sets every element of d to the reduction of the same element of a and of b.
// The three have the same length, are aligned, and may be the same memory.
type kernel func(d, a, b []byte)

// kernels has, for each type of partial results, the kernels of all ops.
var kernels = [...]func(o Op) kernel{
	tensor.Float64: numberKernel[float64], tensor.Float32: numberKernel[float32],
	tensor.Int64: numberKernel[int64], tensor.Int32: numberKernel[int32],
	tensor.Int16: numberKernel[int16], tensor.Int8: numberKernel[int8],
	tensor.Uint64: numberKernel[uint64], tensor.Uint32: numberKernel[uint32],
	tensor.Uint16: numberKernel[uint16], tensor.Uint8: numberKernel[uint8],
	tensor.Bool: boolKernel, tensor.Complex64: complexKernel[float32], tensor.Complex128: complexKernel[float64],
}

func numberKernel[E tensor.Number](o Op) kernel {
	switch o {
	case Max:
		return maxOf[E]
	case Min:
		return minOf[E]
	case Prod:
		return productOf[E]
	}
	return sumOf[E]
}

// sumOf adds eight elements at a time through arrays, because the compiler knows their
// bounds.
func sumOf[E tensor.Number](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[E](db), tensor.Numbers[E](ab), tensor.Numbers[E](bb)
	for len(d) >= 8 && len(a) >= 8 && len(b) >= 8 {
		x, y, z := (*[8]E)(d), (*[8]E)(a), (*[8]E)(b)
		x[0], x[1], x[2], x[3] = y[0]+z[0], y[1]+z[1], y[2]+z[2], y[3]+z[3]
		x[4], x[5], x[6], x[7] = y[4]+z[4], y[5]+z[5], y[6]+z[6], y[7]+z[7]
		d, a, b = d[8:], a[8:], b[8:]
	}

	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] + b[i]
	}
}

func productOf[E tensor.Number](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[E](db), tensor.Numbers[E](ab), tensor.Numbers[E](bb)
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] * b[i]
	}
}

func maxOf[E tensor.Number](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[E](db), tensor.Numbers[E](ab), tensor.Numbers[E](bb)
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = max(a[i], b[i])
	}
}

func minOf[E tensor.Number](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[E](db), tensor.Numbers[E](ab), tensor.Numbers[E](bb)
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = min(a[i], b[i])
	}
}

func boolKernel(o Op) kernel {
	if o == Prod || o == Min {
		return func(d, a, b []byte) {
			a, b = a[:len(d)], b[:len(d)]
			for i := range d {
				d[i] = truth(a[i]) & truth(b[i])
			}
		}
	}
	return func(d, a, b []byte) {
		a, b = a[:len(d)], b[:len(d)]
		for i := range d {
			d[i] = truth(a[i] | b[i])
		}
	}
}

// addBFloat16 adds the bfloat16 elements b to the float32 elements d. The type is
// common enough for a loop that widens and adds at once, four elements at a time.
func addBFloat16(db, bb []byte) {
	d, b := tensor.Numbers[float32](db), tensor.Numbers[uint16](bb)
	for len(d) >= 4 && len(b) >= 4 {
		x, z := (*[4]float32)(d), (*[4]uint16)(b)
		x[0], x[1] = x[0]+bfloat16(z[0]), x[1]+bfloat16(z[1])
		x[2], x[3] = x[2]+bfloat16(z[2]), x[3]+bfloat16(z[3])
		d, b = d[4:], b[4:]
	}

	for i := range d {
		d[i] += bfloat16(b[i])
	}
}

func bfloat16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// truth returns one for every bool that is not zero: other programs may write any
// byte.
func truth(b byte) byte {
	if b != 0 {
		return 1
	}
	return 0
}

func complexKernel[F float32 | float64](o Op) kernel {
	if o != Prod {
		return sumOf[F] // on both parts
	}
	return complexProduct[F]
}

// complexProduct multiplies by the schoolbook formula. The conversions keep the
// compiler from fusing steps on some machines and not on others.
func complexProduct[F float32 | float64](db, ab, bb []byte) {
	d, a, b := tensor.Numbers[F](db), tensor.Numbers[F](ab), tensor.Numbers[F](bb)
	for len(d) >= 2 && len(a) >= 2 && len(b) >= 2 {
		x, y := [2]F(a), [2]F(b)
		d[0], d[1] = F(x[0]*y[0])-F(x[1]*y[1]), F(x[0]*y[1])+F(x[1]*y[0])
		d, a, b = d[2:], a[2:], b[2:]
	}
}

// divide divides the elements of d, of type sum, by n.
func divide(d []byte, sum tensor.DType, n int) {
	if sum == tensor.Float64 || sum == tensor.Complex128 {
		divideBy(tensor.Numbers[float64](d), float64(n))
		return
	}
	divideBy(tensor.Numbers[float32](d), float32(n))
}

func divideBy[F float32 | float64](d []F, n F) {
	for i := range d {
		d[i] /= n
	}
}
