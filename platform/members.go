package platform

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// Members are the ranks of a group, for those who implement [Group]: it has all
// methods but Backend.
type Members struct {
	ranks []int
	rank  int
}

// NewMembers returns the members with these global ranks, of which this process
// is number rank.
func NewMembers(ranks []int, rank int) Members {
	return Members{ranks: slices.Clone(ranks), rank: rank}
}

// Ranks returns the global ranks.
func (m Members) Ranks() []int { return slices.Clone(m.ranks) }

// Rank returns this process's number.
func (m Members) Rank() int { return m.rank }

// Size returns the number of members.
func (m Members) Size() int { return len(m.ranks) }

// GlobalRank returns the global rank of a member.
func (m Members) GlobalRank(rank int) (int, error) {
	if rank < 0 || rank >= len(m.ranks) {
		return 0, fmt.Errorf("global rank of %d of %d members: %w", rank, len(m.ranks), group.ErrInvalid)
	}
	return m.ranks[rank], nil
}

// LocalRank returns the number of the member with that global rank.
func (m Members) LocalRank(global int) (int, error) {
	r := slices.Index(m.ranks, global)
	if r < 0 {
		return 0, fmt.Errorf("rank of global rank %d: no member: %w", global, group.ErrInvalid)
	}
	return r, nil
}
