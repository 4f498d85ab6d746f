package shard

import "fmt"

// Placement says what one dimension of a mesh does to a tensor. The zero
// Placement is [Replicate]; placements are comparable.
type Placement struct {
	kind  kind
	dim   int
	split int
	op    string
}

type kind uint8

const (
	replicate kind = iota
	shard
	strided
	partial
)

// Shard cuts tensor dimension dim into ceil chunks, one for each index of the
// mesh dimension: ten over four are 3, 3, 3 and 1, and chunks at the end may be
// empty. A negative dim counts from the last dimension, which is -1.
func Shard(dim int) Placement { return Placement{kind: shard, dim: dim} }

// Replicate gives every index of the mesh dimension the same.
func Replicate() Placement { return Placement{} }

// StridedShard cuts tensor dimension dim into splitFactor ceil chunks and each
// of these as [Shard] does; an index of the mesh dimension gets its piece of
// every chunk, one after the other. This is PyTorch's _StridedShard: placements
// apply from left to right, and [StridedShard(0, n), Shard(0)] says that the
// right mesh dimension, of length n, was cut first.
//
// FSDP over tensor parallelism is placed so. Where its cuts are uneven the pair
// may mean other pieces, to PyTorch 2.14 as well as here, than FSDP makes of the
// tensor: of 7 rows over 3×2 ranks, for one. A mesh with its dimensions in the
// order of the cuts and a plain Shard for each always says what FSDP makes.
func StridedShard(dim, splitFactor int) Placement {
	return Placement{kind: strided, dim: dim, split: splitFactor}
}

// Partial marks a tensor whose ranks hold the terms of an outstanding
// reduction by op. Layouts refuse it with [ErrPartial].
func Partial(op string) Placement { return Placement{kind: partial, op: op} }

// String returns the call that makes p.
func (p Placement) String() string {
	switch p.kind {
	case shard:
		return fmt.Sprintf("Shard(%d)", p.dim)
	case strided:
		return fmt.Sprintf("StridedShard(%d, %d)", p.dim, p.split)
	case partial:
		return fmt.Sprintf("Partial(%s)", p.op)
	default:
		return "Replicate()"
	}
}

// on returns the tensor dimension that p cuts in a tensor of dims dimensions,
// or -1 where it cuts none.
func (p Placement) on(dims int) (int, error) {
	switch p.kind {
	case replicate:
		return -1, nil
	case partial:
		return 0, fmt.Errorf("%w: %v", ErrPartial, p)
	}
	d := p.dim
	if d < 0 {
		d += dims
	}
	if d < 0 || d >= dims {
		return 0, fmt.Errorf("%w: %v of a tensor of %d dimensions", ErrLayout, p, dims)
	}
	if p.kind == strided && p.split < 1 {
		return 0, fmt.Errorf("%w: %v needs a positive split factor", ErrLayout, p)
	}
	return d, nil
}
