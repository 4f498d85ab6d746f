package plan

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Reads appends to items the reads that fill the box want of a tensor from its
// chunks: dest names the part of the state that has that box. The chunks must
// cover the box exactly; if they do not, the error wraps ErrMismatch.
func (s *chunkSweep) reads(items []ReadItem, dest meta.Index, want tensor.Box) ([]ReadItem, error) {
	if want.Empty() {
		return items, nil
	}
	var have int64
	for i := range s.overlapping(want) {
		c := s.chunks[i]
		common, ok := c.Intersect(want)
		if !ok {
			continue
		}
		have += common.Volume()
		items = append(items, ReadItem{
			Kind:          KindTensor,
			Dest:          dest,
			DestOffsets:   common.Relative(want.Offsets).Offsets,
			Source:        meta.Index{FQN: s.fqn, Offset: c.Offsets, Hint: int32(i)},
			SourceOffsets: common.Relative(c.Offsets).Offsets,
			Lengths:       common.Sizes,
		})
	}
	if have != want.Volume() {
		return nil, fmt.Errorf("%w: the checkpoint holds %d of the %d elements of %v", ErrMismatch, have, want.Volume(), want)
	}
	return items, nil
}

// chunkSweep finds the chunks of one tensor that a box touches. The chunks are
// kept in the order of their start along the dimension that divides them most,
// so that the search looks at few others.
type chunkSweep struct {
	fqn    string
	chunks []tensor.Box
	dim    int
	order  []int32 // chunk numbers by start along dim
	maxEnd []int64 // by position in order: the largest end so far
}

func newSweep(fqn string, chunks []tensor.Box) *chunkSweep {
	s := &chunkSweep{fqn: fqn, chunks: chunks, dim: -1}
	if len(chunks) < 2 {
		return s
	}
	s.dim = mostDivided(chunks)
	if s.dim < 0 {
		return s
	}
	s.order = make([]int32, len(chunks))
	for i := range s.order {
		s.order[i] = int32(i)
	}
	slices.SortStableFunc(s.order, func(a, b int32) int {
		return int(min(1, max(-1, chunks[a].Offsets[s.dim]-chunks[b].Offsets[s.dim])))
	})
	s.maxEnd = make([]int64, len(chunks))
	end := int64(0)
	for i, c := range s.order {
		end = max(end, chunks[c].End(s.dim))
		s.maxEnd[i] = end
	}
	return s
}

// mostDivided returns the dimension along which the chunks start at the most
// places, or -1 for 0-d chunks.
func mostDivided(chunks []tensor.Box) int {
	best, most := -1, 0
	for d := range chunks[0].Dims() {
		starts := make(map[int64]struct{})
		for _, c := range chunks {
			starts[c.Offsets[d]] = struct{}{}
		}
		if len(starts) > most {
			best, most = d, len(starts)
		}
	}
	return best
}

// overlapping yields the numbers of the chunks that may touch b: along the
// sweep's dimension they do.
func (s *chunkSweep) overlapping(b tensor.Box) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		if s.dim < 0 {
			for i := range s.chunks {
				if !yield(i) {
					return
				}
			}
			return
		}
		lo, hi := b.Offsets[s.dim], b.End(s.dim)
		// maxEnd never falls, so everything before the first end beyond lo has
		// ended by then.
		first, _ := slices.BinarySearchFunc(s.maxEnd, lo+1, func(e, t int64) int { return int(min(1, max(-1, e-t))) })
		for _, c := range s.order[first:] {
			if s.chunks[c].Offsets[s.dim] >= hi {
				return
			}
			if !yield(int(c)) {
				return
			}
		}
	}
}
