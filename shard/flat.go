package shard

import (
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Flat cuts the row-major flattened tensor into intervals, as ZeRO optimizers
// and ragged shards do. A rank's local tensor is one-dimensional, its interval;
// the parts are the boxes that together make up the interval, in its order. A
// rank whose interval is empty has no part, except of a tensor that has no
// elements, of which every rank has the whole, so that somebody has it.
type Flat struct {
	// Intervals has the half-open interval of the flattened tensor that each
	// rank holds, rank 0 first.
	Intervals [][2]int64
	// Even is the number of ranks over which a tensor of any size is cut into
	// ceil chunks. Either this or Intervals is given.
	Even int
}

var _ Layout = Flat{}

// FlatEven returns the layout that cuts every flattened tensor into ceil chunks
// over that many ranks.
func FlatEven(ranks int) Flat { return Flat{Even: ranks} }

// Parts implements [Layout].
func (f Flat) Parts(shape []int64, rank int) ([]Part, error) {
	at, err := f.interval(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("flat layout: %w", err)
	}
	if n, _ := tensor.NumElements(shape); n == 0 && f.holds(rank) {
		return []Part{{Box: tensor.Whole(shape), Local: []int64{0}}}, nil
	}
	boxes, err := tensor.FlatBoxes(shape, at.lo, at.hi)
	if err != nil {
		return nil, fmt.Errorf("flat layout: %w", err)
	}
	out := make([]Part, len(boxes))
	var local int64
	for i, b := range boxes {
		out[i] = Part{Box: b, Local: []int64{local}}
		local += b.Volume()
	}
	return out, nil
}

// LocalShape implements [Layout].
func (f Flat) LocalShape(shape []int64, rank int) ([]int64, error) {
	at, err := f.interval(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("flat layout: %w", err)
	}
	return []int64{at.hi - at.lo}, nil
}

// String implements [Layout].
func (f Flat) String() string {
	var b strings.Builder
	b.WriteString("flat")
	if f.Even != 0 {
		fmt.Fprintf(&b, " even %d", f.Even)
	}
	for _, v := range f.Intervals {
		fmt.Fprintf(&b, " [%d, %d)", v[0], v[1])
	}
	return b.String()
}

// holds reports whether rank is one of the layout's.
func (f Flat) holds(rank int) bool { return rank >= 0 && rank < max(f.Even, len(f.Intervals)) }

// interval returns what rank holds of the flattened tensor, the empty span for
// a rank that is not in the layout.
func (f Flat) interval(shape []int64, rank int) (span, error) {
	n, err := tensor.NumElements(shape)
	if err != nil {
		return span{}, err
	}
	if f.Even < 0 || (f.Even > 0) == (len(f.Intervals) > 0) {
		return span{}, fmt.Errorf("%w: even over %d ranks with %d intervals", ErrLayout, f.Even, len(f.Intervals))
	}
	for r, v := range f.Intervals {
		if v[0] < 0 || v[1] < v[0] || v[1] > n {
			return span{}, fmt.Errorf("%w: rank %d holds [%d, %d) of %d elements", tensor.ErrShape, r, v[0], v[1], n)
		}
	}
	if !f.holds(rank) {
		return span{}, nil
	}
	if f.Even > 0 {
		lo, hi := ceilChunk(n, int64(f.Even), int64(rank))
		return span{lo, hi}, nil
	}
	return span{f.Intervals[rank][0], f.Intervals[rank][1]}, nil
}
