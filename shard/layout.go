package shard

import (
	"errors"

	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	// ErrLayout reports a layout that contradicts itself or the tensor it is
	// asked about: a mesh that its ranks do not fill, a dimension that the
	// tensor lacks, an axis used twice.
	ErrLayout = errors.New("invalid layout")
	// ErrPartial reports a Partial placement: the ranks hold terms of a sum
	// that was never taken, so no box of the tensor is anywhere.
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
	// Local is the place of the box's first element in the local tensor. It
	// has as many values as LocalShape. Where that is as many as the box has,
	// the box lies there as it is; in a one-dimensional local tensor of a flat
	// layout its elements lie there row by row, one after the other.
	Local []int64
}

// Layout says which parts of a tensor a rank holds. It is a pure function: the
// same arguments give the same answer on every rank, so every rank can ask for
// every other. Nobody writes to what a layout returns.
type Layout interface {
	// Parts returns the rank's parts of a tensor of that global shape, in the
	// order of the local tensor, none of them overlapping: none at all where
	// the rank holds nothing of the tensor. A rank of the mesh whose shard is
	// empty has one part, an empty box that stands at the end of the cut
	// dimension, as PyTorch places it; for flat layouts see [Flat].
	//
	// Errors wrap [ErrLayout], [ErrPartial] or [tensor.ErrShape].
	Parts(shape []int64, rank int) ([]Part, error)
	// LocalShape returns the shape of the rank's local tensor, which is [0]
	// for a rank outside the mesh. Its errors are those of Parts.
	LocalShape(shape []int64, rank int) ([]int64, error)
	// String identifies the layout: equal strings mean equal layouts.
	String() string
}

// nowhere returns the local shape of a rank that holds nothing of a tensor.
func nowhere() []int64 { return []int64{0} }
