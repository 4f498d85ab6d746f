package collective

import (
	"github.com/cairn-ckpt/cairn/tensor"
)

// reduction is how contributions of type elem become one: partial results are of
// type sum. It is for use by one goroutine.
type reduction struct {
	op        Op
	elem, sum tensor.DType
	ranks     int
	apply     kernel
}

func newReduction(o Op, d tensor.DType, ranks int) reduction {
	s := sumType(d)
	return reduction{op: o, elem: d, sum: s, ranks: ranks, apply: kernelOf(o, s)}
}

// widens reports whether partial results are larger than elements.
func (r *reduction) widens() bool { return r.elem != r.sum }

// sumBytes returns how many bytes partial results take for b bytes of elements.
func (r *reduction) sumBytes(b int) int { return b / r.elem.Size() * r.sum.Size() }

// widen returns elements as partial results: b itself or, where those are of
// another type, room filled with them.
func (r *reduction) widen(room, b []byte) []byte {
	if !r.widens() {
		return b
	}
	room = room[:r.sumBytes(len(b))]
	convert(room, r.sum, b, r.elem)
	return room
}

// add sets d to the reduction of the partial result a and the elements b; room
// is for b as partial results.
func (r *reduction) add(d, a, b, room []byte) {
	if r.elem == tensor.BFloat16 && (r.op == Sum || r.op == Avg) {
		addBFloat16(d, a, b)
		return
	}
	r.apply(d, a, r.widen(room, b))
}

// finish makes elements of the partial result s of all ranks. dst may be s
// where partial results are elements.
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

// convert changes the type of elements. There is nothing that can go wrong with
// memory that this package has cut itself.
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
