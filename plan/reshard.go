package plan

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ChunkIndex finds the chunks of one tensor that overlap a box. If there are many
// boxes, the chunks are sorted by their start along the dimension that divides them
// most, so that each search looks at few of them.
type ChunkIndex struct {
	fqn    string
	chunks []tensor.Box
	dim    int     // -1: every search looks at all chunks
	order  []int32 // chunk numbers by start along dim
	maxEnd []int64 // by position in order: the largest end so far
}

// fewBoxes is the number of boxes up to which a search of all chunks for each box is
// cheaper than sorting the chunks.
const fewBoxes = 4

// NewChunkIndex returns an index of the chunks of e, a tensor. boxes is the number
// of searches to come; the chunks are not sorted for only a few. If a chunk is
// not inside the tensor, the error wraps ErrMismatch.
func NewChunkIndex(e *meta.Entry, boxes int) (*ChunkIndex, error) {
	x, err := newChunkIndex(e.Tensor.Shape, e.Tensor.Chunks, boxes)
	if err != nil {
		return nil, fmt.Errorf("%w: in the checkpoint: %w", ErrMismatch, err)
	}
	x.fqn = e.FQN
	return x, nil
}

// newChunkIndex returns an index of chunks of a tensor of that shape, for the given
// number of searches.
func newChunkIndex(shape []int64, chunks []tensor.Box, boxes int) (*ChunkIndex, error) {
	x := &ChunkIndex{chunks: chunks, dim: -1}
	if _, err := tensor.NumElements(shape); err != nil {
		return nil, err
	}

	for _, c := range x.chunks {
		if err := c.Check(shape); err != nil {
			return nil, err
		}
	}

	if boxes <= fewBoxes || len(x.chunks) < 2 || len(shape) == 0 {
		return x, nil
	}

	x.dim = mostDivided(x.chunks)
	start := func(a, b int32) int { return cmp.Compare(x.chunks[a].Offsets[x.dim], x.chunks[b].Offsets[x.dim]) }
	x.order = numbers(len(x.chunks))
	slices.SortStableFunc(x.order, start)
	x.maxEnd = make([]int64, len(x.chunks))
	end := int64(0)
	for i, c := range x.order {
		end = max(end, x.chunks[c].End(x.dim))
		x.maxEnd[i] = end
	}

	return x, nil
}

// numbers returns 0 to n-1.
func numbers(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// mostDivided returns the dimension in which the boxes have the most different
// offsets, or -1 for 0-d boxes.
func mostDivided(boxes []tensor.Box) int {
	best, most := -1, 0
	starts := make([]int64, len(boxes))
	for d := range boxes[0].Dims() {
		for i, b := range boxes {
			starts[i] = b.Offsets[d]
		}
		slices.Sort(starts)
		if n := len(slices.Compact(starts)); n > most {
			best, most = d, n
		}
	}

	return best
}

// near yields the numbers of the chunks that may overlap b.
func (x *ChunkIndex) near(b tensor.Box) iter.Seq[int] {
	return func(yield func(int) bool) {
		if x.dim < 0 {
			for i := range x.chunks {
				if !yield(i) {
					return
				}
			}
			return
		}

		// maxEnd ascends, so every chunk before position first ends at or before
		// the start of b.
		first, _ := slices.BinarySearch(x.maxEnd, b.Offsets[x.dim]+1)
		for _, c := range x.order[first:] {
			if x.chunks[c].Offsets[x.dim] >= b.End(x.dim) || !yield(int(c)) {
				return
			}
		}
	}
}

// overlap is the common part of a chunk and a box.
type overlap struct {
	chunk int
	box   tensor.Box // in the whole tensor
}

// common returns the overlaps of the chunks with the box b.
func (x *ChunkIndex) common(b tensor.Box) []overlap {
	if b.Empty() {
		return nil
	}

	var out []overlap
	for i := range x.near(b) {
		if !touch(x.chunks[i], b) {
			continue
		}
		both, _ := x.chunks[i].Intersect(b)
		out = append(out, overlap{i, both})
	}

	return out
}

// cover returns the parts of the chunks that make up the box want. It is an error if
// an element of the box is in no chunk, or in several.
func (x *ChunkIndex) cover(want tensor.Box) ([]overlap, error) {
	found := x.common(want)
	var have int64
	for _, o := range found {
		have += o.box.Volume()
	}

	if a, b, ok := anyOverlap(boxesOf(found)); ok {
		return nil, fmt.Errorf("chunks overlap: %v and %v", a, b)
	}
	if have != want.Volume() {
		return nil, fmt.Errorf("the chunks hold %d of the %d elements of %v", have, want.Volume(), want)
	}
	return found, nil
}

// boxesOf returns the boxes of two or more overlaps, which alone can have elements in
// common.
func boxesOf(found []overlap) []tensor.Box {
	if len(found) < 2 {
		return nil
	}
	out := make([]tensor.Box, len(found))
	for i, o := range found {
		out[i] = o.box
	}
	return out
}

// Reads appends to items the reads that fill the box want from the chunks: dest
// names the part of the state that has that box. Every element of the box is
// read exactly once; if the chunks do not allow that, the error wraps
// ErrMismatch.
func (x *ChunkIndex) Reads(items []ReadItem, dest meta.Index, want tensor.Box) ([]ReadItem, error) {
	found, err := x.cover(want)
	if err != nil {
		return items, fmt.Errorf("%w: in the checkpoint: %w", ErrMismatch, err)
	}

	for _, o := range found {
		c := x.chunks[o.chunk]
		items = append(items, ReadItem{
			Kind:          KindTensor,
			Dest:          dest,
			DestOffsets:   o.box.Relative(want.Offsets).Offsets,
			Source:        meta.Index{FQN: x.fqn, Offset: offsetOf(c), Hint: int32(o.chunk)},
			SourceOffsets: o.box.Relative(c.Offsets).Offsets,
			Lengths:       o.box.Sizes,
		})
	}

	return items, nil
}

// touch reports whether a and b have an element in common.
func touch(a, b tensor.Box) bool {
	for d := range a.Sizes {
		if max(a.Offsets[d], b.Offsets[d]) >= min(a.End(d), b.End(d)) {
			return false
		}
	}
	return true
}
