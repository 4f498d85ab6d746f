package engine

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/cairn-ckpt/cairn/tensor"
)

// extent is where the memory of a part begins and ends.
type extent struct {
	begin, end uintptr
	piece      *piece
}

// markOverlaps finds the parts whose memory is also another's, such as two names
// of one tensor, and has them read and received elsewhere first: what is in such
// memory while it is sent, or checked, may be the other part.
func markOverlaps(all []*piece) error {
	extents := make([]extent, 0, len(all))
	for _, p := range all {
		if p.to.NumElements() == 0 {
			continue
		}
		begin, end, err := span(p.to)
		if err != nil {
			return err
		}
		extents = append(extents, extent{begin, end, p})
	}
	slices.SortFunc(extents, func(a, b extent) int { return cmp.Compare(a.begin, b.begin) })
	var furthest extent
	for _, x := range extents {
		if x.begin < furthest.end {
			for _, p := range []*piece{x.piece, furthest.piece} {
				p.direct, p.common = false, true
			}
		}
		if x.end > furthest.end {
			furthest = x
		}
	}
	return nil
}

// span returns the addresses of the first byte of t and after the last. Strides
// are not negative, so that these are those of its first and last element.
func span(t *tensor.Tensor) (begin, end uintptr, err error) {
	corner := func(last bool) ([]byte, error) {
		b := tensor.Box{Offsets: make([]int64, t.Dims()), Sizes: make([]int64, t.Dims())}
		for d, n := range t.Shape() {
			b.Sizes[d] = 1
			if last {
				b.Offsets[d] = n - 1
			}
		}
		x, err := t.Narrow(b)
		if err != nil {
			return nil, err
		}
		return x.Contents(), nil // a single element is contiguous
	}
	first, err := corner(false)
	if err != nil {
		return 0, 0, err
	}
	last, err := corner(true)
	if err != nil {
		return 0, 0, err
	}
	address := func(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
	return address(first), address(last) + uintptr(len(last)), nil
}
