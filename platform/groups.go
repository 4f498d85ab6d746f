package platform

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// Group is a set of ranks that a platform can make act together. Its methods are
// local and safe for concurrent use.
type Group interface {
	// Ranks returns the members' global ranks in the order of the group's own.
	// The slice is the caller's.
	Ranks() []int
	// Rank returns this process's number in the group, from 0.
	Rank() int
	// Size returns the number of members.
	Size() int
	// GlobalRank returns the global rank of the member with that number.
	GlobalRank(rank int) (int, error)
	// LocalRank returns the number in the group of the member with that global
	// rank.
	LocalRank(global int) (int, error)
	// Backend names what carries the group's messages, such as "tcp".
	Backend() string
}

// Groups makes groups and remembers them by the set of their ranks.
//
// # Contract
//
//   - New and Split are collective: every rank of the world, or of the parent,
//     calls them with the same lists and in the same order, also if it will be
//     no member and if the group is remembered. They have one outcome. Ranks
//     that call with different lists get an error that wraps
//     [group.ErrDisagree]; ranks of which some call this and some another
//     collective method get that of the group's contract.
//   - A group's ranks are in ascending order whatever the list's was, so one set
//     of ranks is one group: if all members remember it they get it again.
//   - A list that is empty, or names a rank twice or one that is not there,
//     fails the call on all ranks with [group.ErrInvalid].
//   - A rank that is no member gets nil and no error. No method takes a nil
//     Group for the world: it is refused with [group.ErrInvalid], so that a rank
//     that forgot to check does not take part in another group's call.
type Groups interface {
	// World returns the group of all ranks.
	World() Group
	// New returns the group of the ranks. See [Partition] for making all groups
	// of a kind at once.
	New(ctx context.Context, ranks []int) (Group, error)
	// Split makes a group of each of the parts, lists of global ranks of parent
	// that have none in common, and returns this rank's.
	Split(ctx context.Context, parent Group, parts [][]int) (Group, error)
	// Lookup returns the group of the ranks that this rank remembers, in
	// whatever order they are listed. It is local.
	Lookup(ranks []int) (Group, bool)
	// Adopt makes the platform remember groups, in place of others of the same
	// ranks. It is local, and all members of a group should do it: New finds an
	// adopted group only if all have adopted the same one and the platform can
	// tell, else it makes another. A group that the platform cannot use is an
	// error that wraps [group.ErrInvalid].
	Adopt(groups ...Group) error
	// Close leaves the group for good and forgets it; closing the world leaves
	// all groups. It is local: calls of other members that wait for this rank
	// fail with [group.ErrGone], so a barrier is in order first. Later calls of
	// this rank fail in the same way. Closing twice is the same as once.
	Close(ctx context.Context, g Group) error
}

// Barrierer makes ranks wait for each other.
type Barrierer interface {
	// Barrier returns once every rank of g has called it. It fails on all of
	// them or on none.
	Barrier(ctx context.Context, g Group) error
}

// Members are the ranks of a group, for implementations of [Group]: it has all
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

// needGroup returns an error that wraps [group.ErrInvalid] if a call of that
// name is for no group.
func needGroup(op group.Op, g Group) error {
	if g == nil {
		return fmt.Errorf("%s: no group; a rank that is no member has none: %w", op, group.ErrInvalid)
	}
	return nil
}
