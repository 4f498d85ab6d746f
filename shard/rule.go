package shard

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Rule says how a length is cut into n chunks that need not be equal.
type Rule uint8

const (
	// Divisible refuses lengths that n does not divide.
	Divisible Rule = iota
	// Balanced makes chunks that differ by one at most, the longer ones first:
	// eight over three are 3, 3 and 2.
	Balanced
	// Ceil makes chunks of the length divided by n, rounded up, until nothing
	// is left: nine over four are 3, 3, 3 and 0.
	Ceil
)

// String returns the rule's name.
func (r Rule) String() string {
	switch r {
	case Divisible:
		return "divisible"
	case Balanced:
		return "balanced"
	case Ceil:
		return "ceil"
	}
	return fmt.Sprintf("rule %d", uint8(r))
}

// chunk returns the half-open interval of the i-th of n chunks of a length.
func (r Rule) chunk(length, n, i int64) (lo, hi int64, err error) {
	switch r {
	case Divisible:
		if length%n != 0 {
			return 0, 0, fmt.Errorf("%w: %d is not divisible by %d", tensor.ErrShape, length, n)
		}
		return length / n * i, length / n * (i + 1), nil
	case Balanced:
		size, rest := length/n, length%n
		lo = size*i + min(i, rest)
		if i < rest {
			size++
		}
		return lo, lo + size, nil
	default:
		lo, hi = ceilChunk(length, n, i)
		return lo, hi, nil
	}
}

// ceilChunk is torch.chunk's rule. It does not overflow, whatever n.
func ceilChunk(length, n, i int64) (lo, hi int64) {
	if length == 0 {
		return 0, 0
	}
	size := (length-1)/n + 1
	if i > length/size {
		return length, length
	}
	lo = i * size
	return lo, lo + min(size, length-lo)
}
