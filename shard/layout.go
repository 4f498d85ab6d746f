// Package shard computes which boxes of a tensor a rank holds, from a device mesh
// with placements, hyper_parallel's layout, flat intervals, or explicit boxes. It is
// pure geometry: it does not depend on communication, files or checkpoints, and imports
// only package tensor. The contract is in the comments of Layout and Part.
package shard

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	// ErrLayout reports a layout that contradicts itself or the tensor: a mesh that
	// its ranks do not fill, a dimension that the tensor lacks, an axis used twice.
	ErrLayout = errors.New("invalid layout")
	// ErrPartial reports a Partial placement: the ranks hold terms of a reduction
	// that was not done, so no rank holds a part of the tensor.
	ErrPartial = errors.New("partial placement holds no part of the tensor")
)

// maxParts bounds the parts of one rank, so that a layout read from a file
// cannot demand memory without end.
const maxParts = 1 << 20

// Part is one box that a rank holds and where it lies in the rank's local
// tensor.
type Part struct {
	// Box is the part's place in the global tensor.
	Box tensor.Box
	// Local is the place of the box's first element in the local tensor, with one
	// value for each dimension of LocalShape. If the box has the same number of
	// dimensions, it lies there as it is; in the one-dimensional local tensor of a
	// flat layout its elements lie there in row-major order.
	Local []int64
}

// Layout says which parts of a tensor a rank holds. It is a pure function, so every
// rank can compute the parts of every other. The slices that a layout returns must not
// be changed.
type Layout interface {
	// Parts returns the rank's parts of a tensor of that global shape, in the order of the local
	// tensor, without overlap. A rank that is not in the layout has no parts. A rank of a mesh
	// with an empty shard has one part: an empty box at the end of the cut dimension, as in
	// PyTorch. For flat layouts see [Flat].
	//
	// Errors wrap [ErrLayout], [ErrPartial] or [tensor.ErrShape].
	Parts(shape []int64, rank int) ([]Part, error)
	// LocalShape returns the shape of the rank's local tensor, which is [0]
	// for a rank outside the mesh. It returns the errors of Parts.
	LocalShape(shape []int64, rank int) ([]int64, error)
	// String identifies the layout: equal strings mean equal layouts.
	String() string
}

// nowhere returns the local shape of a rank that holds no element of a tensor.
func nowhere() []int64 { return []int64{0} }

// Explicit is a layout that lists the parts of each rank. A rank that is not listed holds no
// element. A rank's parts must fill its local tensor without overlap. The shape of the local
// tensor follows from them.
type Explicit struct {
	// ByRank has each rank's parts. A nil Local is the local tensor's first
	// element.
	ByRank map[int][]Part
}

var _ Layout = Explicit{}

// Boxes returns the layout in which each rank holds one box and its local
// tensor is that box.
func Boxes(byRank map[int]tensor.Box) Explicit {
	e := Explicit{ByRank: make(map[int][]Part, len(byRank))}
	for r, b := range byRank {
		e.ByRank[r] = []Part{{Box: b}}
	}
	return e
}

// Parts implements [Layout]. Only the rank's own parts are checked.
func (e Explicit) Parts(shape []int64, rank int) ([]Part, error) {
	parts, _, err := e.local(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("explicit layout of rank %d: %w", rank, err)
	}
	return parts, nil
}

// LocalShape implements [Layout].
func (e Explicit) LocalShape(shape []int64, rank int) ([]int64, error) {
	_, local, err := e.local(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("explicit layout of rank %d: %w", rank, err)
	}
	return local, nil
}

// String implements [Layout].
func (e Explicit) String() string {
	var b strings.Builder
	b.WriteString("explicit")
	for _, r := range slices.Sorted(maps.Keys(e.ByRank)) {
		fmt.Fprintf(&b, " %d:", r)
		for _, p := range e.ByRank[r] {
			fmt.Fprintf(&b, " %v", p.Box)
			if slices.ContainsFunc(p.Local, func(v int64) bool { return v != 0 }) {
				fmt.Fprintf(&b, "@%v", p.Local)
			}
		}
	}

	return b.String()
}

// local returns rank's parts and the shape that they fill.
func (e Explicit) local(shape []int64, rank int) ([]Part, []int64, error) {
	if _, err := tensor.NumElements(shape); err != nil {
		return nil, nil, err
	}

	parts := slices.Clone(e.ByRank[rank])
	if len(parts) == 0 {
		return nil, nowhere(), nil
	}

	var held int64
	reach := make([]int64, len(shape))
	for i := range parts {
		p := &parts[i]
		if p.Local == nil {
			p.Local = make([]int64, len(shape))
		}

		if err := p.stretch(reach, shape); err != nil {
			return nil, nil, err
		}
		if held > math.MaxInt64-p.Box.Volume() {
			return nil, nil, fmt.Errorf("%w: more elements than an int64 counts", ErrLayout)
		}
		held += p.Box.Volume()
	}

	n, err := tensor.NumElements(reach)
	if err != nil {
		return nil, nil, err
	}
	if n != held {
		return nil, nil, fmt.Errorf("%w: parts of %d elements do not fill a local tensor of shape %v", ErrLayout, held, reach)
	}
	return parts, reach, nil
}

// stretch checks p against the global shape and lengthens reach to hold it.
func (p Part) stretch(reach, shape []int64) error {
	if err := p.Box.Check(shape); err != nil {
		return err
	}
	if len(p.Local) != len(shape) {
		return fmt.Errorf("%w: local offset %v of box %v", ErrLayout, p.Local, p.Box)
	}

	for d, at := range p.Local {
		if at < 0 || at > math.MaxInt64-p.Box.Sizes[d] {
			return fmt.Errorf("%w: local offset %v of box %v", ErrLayout, p.Local, p.Box)
		}
		reach[d] = max(reach[d], at+p.Box.Sizes[d])
	}

	return nil
}

// Flat cuts the row-major flattened tensor into intervals, as ZeRO optimizers and ragged
// shards do. A rank's local tensor is one-dimensional, its interval; its parts are the boxes
// of the interval, in order. A rank with an empty interval has no part, unless the tensor has
// no elements: then every rank has the whole tensor.
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

// interval returns rank's interval of the flattened tensor, or the empty span for a rank that
// is not in the layout.
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
		lo, hi := tensor.CeilChunk(n, int64(f.Even), int64(rank))
		return span{lo, hi}, nil
	}
	return span{f.Intervals[rank][0], f.Intervals[rank][1]}, nil
}
