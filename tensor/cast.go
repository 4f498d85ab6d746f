package tensor

import (
	"errors"
	"fmt"
)

// ErrCast reports a change of dtype that the [CastPolicy] forbids.
var ErrCast = errors.New("cast not allowed")

// CastPolicy says which changes of dtype [Convert] may make.
type CastPolicy uint8

// The policies. A zero CastPolicy allows every cast.
const (
	CastAny   CastPolicy = iota // any dtype to any other
	CastWiden                   // only where [CanWiden] holds
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
//   - A NaN stays a NaN. What is too large becomes an infinity, or where the
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

// convertRuns converts in place where elements follow each other on both sides.
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
