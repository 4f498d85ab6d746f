package tensor

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// MaxDims bounds the number of dimensions of a tensor. Decoders refuse more.
const MaxDims = 64

// ErrShape reports a shape, box or stride that cannot describe a tensor:
// negative, overflowing, of too many dimensions, or out of bounds.
var ErrShape = errors.New("invalid shape")

// Box is a half-open N-dimensional interval of a tensor's index space.
// Offsets and Sizes have one value for each dimension; a box of no dimensions
// is the single element of a 0-d tensor. Boxes share their slices freely:
// the slices of a box are not changed after it was made.
type Box struct {
	Offsets []int64
	Sizes   []int64
}

// Whole returns the box that covers all of shape.
func Whole(shape []int64) Box {
	return Box{Offsets: make([]int64, len(shape)), Sizes: shape}
}

// Dims returns the number of dimensions.
func (b Box) Dims() int { return len(b.Sizes) }

// Volume returns the number of elements inside b, which must be valid
// (see [Box.Check]).
func (b Box) Volume() int64 {
	n := int64(1)
	for _, s := range b.Sizes {
		n *= s
	}
	return n
}

// Empty reports whether b holds no element.
func (b Box) Empty() bool { return slices.Contains(b.Sizes, 0) }

// Equal reports whether b and c have the same offsets and sizes.
func (b Box) Equal(c Box) bool {
	return slices.Equal(b.Offsets, c.Offsets) && slices.Equal(b.Sizes, c.Sizes)
}

// End returns the index one past b's last in dimension d.
func (b Box) End(d int) int64 { return b.Offsets[d] + b.Sizes[d] }

// Intersect returns the common part of b and c, which must have equally many dimensions. It
// reports false if they have no element in common, so an empty box intersects no box; two 0-d
// boxes always intersect.
func (b Box) Intersect(c Box) (Box, bool) {
	n := len(b.Sizes)
	back := make([]int64, 2*n)
	out := Box{Offsets: back[:n:n], Sizes: back[n:]}
	for d := range n {
		lo := max(b.Offsets[d], c.Offsets[d])
		hi := min(b.End(d), c.End(d))
		if lo >= hi {
			return Box{}, false
		}
		out.Offsets[d], out.Sizes[d] = lo, hi-lo
	}

	return out, true
}

// Relative returns b moved so that origin becomes its zero point.
func (b Box) Relative(origin []int64) Box {
	out := Box{Offsets: make([]int64, len(b.Offsets)), Sizes: b.Sizes}
	for d := range out.Offsets {
		out.Offsets[d] = b.Offsets[d] - origin[d]
	}
	return out
}

// Check returns an error that wraps [ErrShape] unless b lies within a tensor of
// the given shape. An empty box may be at the end of a dimension.
func (b Box) Check(shape []int64) error {
	if len(b.Offsets) != len(b.Sizes) || len(b.Sizes) != len(shape) {
		return fmt.Errorf("%w: box %v has %d offsets and %d sizes in a tensor of %d dimensions",
			ErrShape, b, len(b.Offsets), len(b.Sizes), len(shape))
	}

	for d, n := range shape {
		o, s := b.Offsets[d], b.Sizes[d]
		if o < 0 || s < 0 || o > n || s > n-o {
			return fmt.Errorf("%w: box %v leaves %v in dimension %d", ErrShape, b, shape, d)
		}
	}

	return nil
}

// Between returns b with the range [begin, end) in dimension d.
func (b Box) Between(d int, begin, end int64) Box {
	out := Box{Offsets: slices.Clone(b.Offsets), Sizes: slices.Clone(b.Sizes)}
	out.Offsets[d], out.Sizes[d] = begin, end-begin
	return out
}

// Cut divides b into parts of at most that many elements each, along its first dimensions.
func (b Box) Cut(most int64) []Box {
	n := b.Volume()
	d := slices.IndexFunc(b.Sizes, func(s int64) bool { return s > 1 })
	if n <= most || d < 0 {
		return []Box{b}
	}

	per := max(1, most/(n/b.Sizes[d]))
	var out []Box
	for at := b.Offsets[d]; at < b.End(d); at += per {
		out = append(out, b.Between(d, at, min(at+per, b.End(d))).Cut(most)...)
	}

	return out
}

// String prints b as offsets and sizes, for people.
func (b Box) String() string { return fmt.Sprintf("%v+%v", b.Offsets, b.Sizes) }

// NumElements returns the product of shape's dimensions, or an error that wraps
// [ErrShape] if one is negative, there are more than [MaxDims], or the
// product does not fit an int64. A zero dimension makes the product zero only
// if the other dimensions are valid too.
func NumElements(shape []int64) (int64, error) {
	if len(shape) > MaxDims {
		return 0, fmt.Errorf("%w: %d dimensions, at most %d", ErrShape, len(shape), MaxDims)
	}

	n, zero := int64(1), false
	for _, s := range shape {
		switch {
		case s < 0:
			return 0, fmt.Errorf("%w: negative dimension in %v", ErrShape, shape)
		case s == 0:
			zero = true
		case n > math.MaxInt64/s:
			return 0, fmt.Errorf("%w: %v has more elements than an int64 counts", ErrShape, shape)
		default:
			n *= s
		}
	}

	if zero {
		return 0, nil
	}
	return n, nil
}

// NumBytes returns the bytes that a contiguous tensor of dtype d and the given
// shape takes, with the errors of [NumElements].
func NumBytes(d DType, shape []int64) (int64, error) {
	n, err := NumElements(shape)
	if err != nil {
		return 0, err
	}

	size := int64(d.Size())
	if size == 0 {
		return 0, fmt.Errorf("%w: %v", ErrDType, d)
	}
	if n > math.MaxInt64/size {
		return 0, fmt.Errorf("%w: %v of %v has more bytes than an int64 counts", ErrShape, shape, d)
	}
	return n * size, nil
}

// FlatBoxes cuts the row-major interval [lo, hi) of a tensor's elements into boxes:
// a ragged head, whole slabs and a ragged tail, in ascending order. Together the
// boxes cover the interval exactly, and each is one contiguous run of the flattened
// tensor.
func FlatBoxes(shape []int64, lo, hi int64) ([]Box, error) {
	n, err := NumElements(shape)
	if err != nil {
		return nil, err
	}
	if lo < 0 || hi < lo || hi > n {
		return nil, fmt.Errorf("%w: interval [%d, %d) of %d elements", ErrShape, lo, hi, n)
	}
	if lo == hi {
		return nil, nil
	}
	return appendFlat(nil, shape, nil, lo, hi), nil
}

// appendFlat adds the boxes of [lo, hi) of the sub-tensor that the fixed leading
// indices select.
func appendFlat(out []Box, shape, fixed []int64, lo, hi int64) []Box {
	k := len(fixed)
	if k == len(shape) {
		return append(out, boxOf(fixed, shape))
	}

	inner := int64(1)
	for _, s := range shape[k+1:] {
		inner *= s
	}

	first, last := lo/inner, hi/inner
	headCut, tailCut := lo%inner, hi%inner
	if first == last {
		return appendFlat(out, shape, with(fixed, first), headCut, tailCut)
	}

	if headCut != 0 {
		out = appendFlat(out, shape, with(fixed, first), headCut, inner)
		first++
	}

	if first < last {
		b := boxOf(fixed, shape)
		b.Offsets[k], b.Sizes[k] = first, last-first
		out = append(out, b)
	}

	if tailCut != 0 {
		out = appendFlat(out, shape, with(fixed, last), 0, tailCut)
	}
	return out
}

func with(fixed []int64, i int64) []int64 { return append(slices.Clip(fixed), i) }

// boxOf returns the box at the fixed leading indices that is whole in the other
// dimensions.
func boxOf(fixed, shape []int64) Box {
	n := len(shape)
	back := make([]int64, 2*n)
	b := Box{Offsets: back[:n:n], Sizes: back[n:]}
	copy(b.Offsets, fixed)
	copy(b.Sizes, shape)
	for d := range fixed {
		b.Sizes[d] = 1
	}
	return b
}
