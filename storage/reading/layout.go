package reading

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// layout describes where the elements of a chunk are in its file.
type layout struct {
	start   int64   // offset of the chunk's first element in the file
	elem    int64   // bytes of an element
	sizes   []int64 // of the chunk
	strides []int64 // in bytes
	order   []int   // the dimensions, the largest stride first
}

// check returns an error if a file of the given size does not hold the region.
func (r *Region) check(fileSize int64) error {
	if r.Offset < 0 || r.End < r.Offset || r.End > fileSize {
		return fmt.Errorf("%w: bytes %d to %d of %s, which has %d bytes", storage.ErrCorrupt, r.Offset, r.End, r.File, fileSize)
	}
	if !r.DType.Valid() {
		return fmt.Errorf("%w: elements of an unknown type in %s", storage.ErrCorrupt, r.File)
	}
	return nil
}

// layoutOf returns the layout of a chunk of the given sizes in a file of the
// given size. It returns an error if the file is too small for the region, or the
// region for the chunk.
func layoutOf(r *Region, sizes []int64, fileSize int64) (*layout, error) {
	if err := r.check(fileSize); err != nil {
		return nil, err
	}
	l := &layout{start: r.Offset, elem: int64(r.DType.Size()), sizes: sizes}
	need, err := l.stride(r)
	if err != nil {
		return nil, err
	}
	if have := (r.End - r.Offset) / l.elem; need > have {
		return nil, fmt.Errorf("%w: a chunk of %v takes %d elements of %s at %d, which has only %d elements", storage.ErrCorrupt, sizes, need, r.File, r.Offset, have)
	}
	for d := range l.strides {
		l.strides[d] *= l.elem
	}
	l.order = make([]int, len(sizes))
	for d := range l.order {
		l.order[d] = d
	}
	slices.SortStableFunc(l.order, func(a, b int) int { return cmp.Compare(l.strides[b], l.strides[a]) })
	return l, nil
}

// stride sets l.strides, in elements, and returns how many elements of the file the
// chunk spans.
func (l *layout) stride(r *Region) (int64, error) {
	n, err := tensor.NumElements(l.sizes)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	l.strides = make([]int64, len(l.sizes))
	if r.Strides == nil {
		stride := int64(1)
		for d := len(l.sizes) - 1; d >= 0 && n > 0; d-- {
			l.strides[d] = stride
			stride *= l.sizes[d]
		}
		return n, nil
	}
	if len(r.Strides) != len(l.sizes) {
		return 0, fmt.Errorf("%w: %d strides for %d dimensions in %s", storage.ErrCorrupt, len(r.Strides), len(l.sizes), r.File)
	}
	if n == 0 {
		return 0, nil
	}
	most := (r.End - r.Offset) / l.elem
	span := int64(1)
	for d, s := range r.Strides {
		steps := l.sizes[d] - 1
		if s < 0 || steps > 0 && s > most/steps || span > most-steps*s {
			return 0, fmt.Errorf("%w: strides %v of a chunk of %v exceed the %d elements at %d of %s", storage.ErrCorrupt, r.Strides, l.sizes, most, r.Offset, r.File)
		}
		span += steps * s
		if steps > 0 {
			l.strides[d] = s
		}
	}
	return span, nil
}

// expands reports whether the chunk repeats elements of its file.
func (l *layout) expands() bool {
	for d, s := range l.strides {
		if s == 0 && l.sizes[d] > 1 {
			return true
		}
	}
	return false
}

// offset returns the offset of the element at index in the file.
func (l *layout) offset(index []int64) int64 {
	at := l.start
	for d, i := range index {
		at += i * l.strides[d]
	}
	return at
}

// spread returns how the bytes of a box of the given sizes are read. If axes is zero,
// they are one range of width bytes. Otherwise they are rows of width bytes, which
// repeat along the dimensions l.order[:axes]. Holes of at most gap bytes are read too.
func (l *layout) spread(sizes []int64, gap int64) (width int64, axes int) {
	width = l.elem
	for i := len(l.order) - 1; i >= 0; i-- {
		d := l.order[i]
		if sizes[d] == 1 || l.strides[d] == 0 {
			continue
		}
		if l.strides[d]-width > gap {
			return width, i + 1
		}
		width += (sizes[d] - 1) * l.strides[d]
	}
	return width, 0
}

// rows returns the axes along which the rows of a box repeat, and the number n of rows.
// axes is the result of spread.
func (l *layout) rows(sizes []int64, axes int) (rows []Axis, n int64) {
	n = 1
	for _, d := range l.order[:axes] {
		if sizes[d] > 1 && l.strides[d] > 0 {
			rows = append(rows, Axis{Count: sizes[d], Pitch: l.strides[d]})
			n *= sizes[d]
		}
	}
	return rows, n
}

// flat reports whether the elements of a box of the given sizes are contiguous in the
// file, in row-major order.
func (l *layout) flat(sizes []int64) bool {
	stride := l.elem
	for d := len(sizes) - 1; d >= 0; d-- {
		if sizes[d] != 1 && l.strides[d] != stride {
			return false
		}
		stride *= sizes[d]
	}
	return true
}

// cut divides a box into parts and calls emit for each of them. A part needs a buffer
// of at most m.most bytes, unless it cannot be divided further. A row of more than
// m.small bytes becomes a part of its own, which can be read directly into the memory
// of the receiver.
func (l *layout) cut(box tensor.Box, m limits, emit func(tensor.Box)) {
	width, axes := l.spread(box.Sizes, m.gap)
	_, rows := l.rows(box.Sizes, axes)
	if width*rows <= m.most && (rows == 1 || width <= m.small) {
		emit(box)
		return
	}
	i := slices.IndexFunc(l.order, func(d int) bool { return box.Sizes[d] > 1 && l.strides[d] > 0 })
	if i < 0 {
		emit(box)
		return
	}
	d := l.order[i]
	per := int64(1)
	switch one := width * (rows / box.Sizes[d]); { // bytes for one index of dimension d
	case axes > 0 && width <= m.small:
		per = max(1, m.most/one)
	case axes == 0:
		one = width - (box.Sizes[d]-1)*l.strides[d]
		per = max(1, 1+(m.most-one)/l.strides[d])
	}
	for at := box.Offsets[d]; at < box.End(d); at += per {
		part := tensor.Box{Offsets: slices.Clone(box.Offsets), Sizes: slices.Clone(box.Sizes)}
		part.Offsets[d], part.Sizes[d] = at, min(per, box.End(d)-at)
		l.cut(part, m, emit)
	}
}

// view returns a tensor of the elements of a box of the given sizes. Its memory is p,
// the buffer that the box was read into.
func (l *layout) view(dtype tensor.DType, sizes []int64, gap int64, p []byte) (*tensor.Tensor, error) {
	width, axes := l.spread(sizes, gap)
	strides := make([]int64, len(sizes))
	for d := range strides {
		strides[d] = l.strides[d] / l.elem
	}
	row := width / l.elem
	for i := axes - 1; i >= 0; i-- {
		d := l.order[i]
		if sizes[d] > 1 && l.strides[d] > 0 {
			strides[d] = row
			row *= sizes[d]
		}
	}
	return tensor.FromStrided(dtype, sizes, strides, 0, p)
}
