package platform

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// Partition takes the ranks of one group for a pattern and returns the groups of
// that pattern that make up a world of size ranks, ready for [Groups.Split], the
// pattern itself among them: [0 2] in a world of eight stands for [0 2], [1 3],
// [4 6] and [5 7].
//
// The ranks, in any order, must have equal distances, and the pattern must fill
// the world without a rest; the error wraps [group.ErrInvalid].
func Partition(ranks []int, size int) ([][]int, error) {
	ranks = slices.Sorted(slices.Values(ranks))
	step, err := stepOf(ranks)
	if err != nil {
		return nil, fmt.Errorf("partition by %v: %w", ranks, err)
	}
	n := len(ranks)
	if ranks[0] < 0 || ranks[n-1] >= size {
		return nil, fmt.Errorf("partition by %v: a rank is not in a world of %d: %w", ranks, size, group.ErrInvalid)
	}
	block := n * step // at most twice what lies between the first and the last rank
	if size%block != 0 || ranks[0]%block >= step {
		return nil, fmt.Errorf("partition by %v: blocks of %d ranks do not fill a world of %d with it: %w",
			ranks, block, size, group.ErrInvalid)
	}
	parts := make([][]int, 0, size/n)
	for base := 0; base < size; base += block {
		for first := base; first < base+step; first++ {
			part := make([]int, n)
			for i := range part {
				part[i] = first + i*step
			}
			parts = append(parts, part)
		}
	}
	return parts, nil
}

// stepOf returns the distance between sorted ranks.
func stepOf(ranks []int) (int, error) {
	switch len(ranks) {
	case 0:
		return 0, fmt.Errorf("no ranks: %w", group.ErrInvalid)
	case 1:
		return 1, nil
	}
	step := ranks[1] - ranks[0]
	for i := 1; i < len(ranks); i++ {
		if d := ranks[i] - ranks[i-1]; d != step || d <= 0 {
			return 0, fmt.Errorf("irregular step between ranks %d and %d: %w", ranks[i-1], ranks[i], group.ErrInvalid)
		}
	}
	return step, nil
}
