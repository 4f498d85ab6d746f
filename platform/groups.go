package platform

import (
	"context"
	"errors"
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
	// Backend names the transport of the group's messages, such as "tcp".
	Backend() string
}

// Groups makes groups and remembers them by the list of their ranks.
//
// # Contract
//
//   - New and Split are collective: every rank of the world, or of the parent,
//     calls them with the same lists and in the same order, even if it is not a
//     member and if the group is remembered. They have one outcome. Ranks that
//     call with different lists get an error that wraps [group.ErrDisagree].
//   - The members of a group are numbered in the order of its list, as the ranks of a
//     mesh are, so the same ranks in another order are another group. One list is one
//     group: if all members remember it, they get it again.
//   - A list that is empty, names a rank twice or names a rank that does not exist
//     fails the call on all ranks with [group.ErrInvalid].
//   - A rank that is not a member gets nil and no error. Every method refuses a nil
//     Group with [group.ErrInvalid] rather than take it for the world, so that a
//     rank that forgot to check does not take part in another group's call.
type Groups interface {
	// World returns the group of all ranks.
	World() Group
	// New returns the group of the ranks. [Partition] and Split make all groups
	// of one pattern at once.
	New(ctx context.Context, ranks []int) (Group, error)
	// Split makes a group of each of the parts, disjoint lists of global ranks of
	// parent, and returns this rank's.
	Split(ctx context.Context, parent Group, parts [][]int) (Group, error)
	// Lookup returns the group of the ranks, in that order, that this rank
	// remembers. It is local. [LookupSorted] takes the ranks in any order.
	Lookup(ranks []int) (Group, bool)
	// Adopt makes the platform remember groups, in place of others of the same
	// list of ranks. It is local. New returns an adopted group only if all members have
	// adopted the same one and the platform can identify it; otherwise it makes
	// another. The error for a group that the platform cannot use wraps
	// [group.ErrInvalid].
	Adopt(groups ...Group) error
	// Close leaves the group for good and forgets it; closing the world leaves all groups. It is
	// local: calls of other members that wait for this rank fail with [group.ErrGone], so call
	// Barrier first. Later calls of this rank fail in the same way. A second Close has no
	// effect.
	Close(ctx context.Context, g Group) error
}

// Comm returns g as a [group.Group], for saving and loading. The groups of a platform
// that saves and loads have a method Unwrap that returns one; otherwise the error wraps
// [errors.ErrUnsupported]. The error for a nil group wraps [group.ErrInvalid], because a
// nil group.Group often means a single rank.
func Comm(g Group) (group.Group, error) {
	if err := needGroup("comm", g); err != nil {
		return nil, err
	}
	w, ok := g.(interface{ Unwrap() group.Group })
	if !ok {
		return nil, fmt.Errorf("a %T as a group of package group: %w", g, errors.ErrUnsupported)
	}
	return w.Unwrap(), nil
}

// LookupSorted returns the group of the ranks in ascending order that this rank remembers,
// in whatever order they are listed, as hyper_parallel knows its groups. It finds a group that
// [Groups.New] made of an ascending list.
func LookupSorted(g Groups, ranks []int) (Group, bool) {
	return g.Lookup(slices.Sorted(slices.Values(ranks)))
}

// Partition takes the ranks of one group as a pattern and returns all groups of
// that pattern in a world of size ranks, including the pattern itself, ready for
// [Groups.Split]: [0 2] in a world of eight stands for [0 2], [1 3], [4 6] and [5 7].
//
// The ranks, in any order, must have equal distances, and the groups must cover the
// world; otherwise the error wraps [group.ErrInvalid].
func Partition(ranks []int, size int) ([][]int, error) {
	n := len(ranks)
	if n == 0 {
		return nil, fmt.Errorf("partition by no ranks: %w", group.ErrInvalid)
	}

	ranks = slices.Sorted(slices.Values(ranks))
	if ranks[0] < 0 || ranks[n-1] >= size {
		return nil, fmt.Errorf("partition by %v: a rank is not in a world of %d: %w", ranks, size, group.ErrInvalid)
	}

	step := 1
	for i := 1; i < n; i++ {
		if i == 1 {
			step = ranks[1] - ranks[0]
		}
		if d := ranks[i] - ranks[i-1]; d != step || d == 0 {
			return nil, fmt.Errorf("partition by %v: irregular step between ranks %d and %d: %w", ranks, ranks[i-1], ranks[i], group.ErrInvalid)
		}
	}

	block := n * step // at most twice the distance between the first and the last rank
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

func needGroup(op group.Op, g Group) error {
	if g == nil {
		return fmt.Errorf("%s: no group; a rank that is not a member has none: %w", op, group.ErrInvalid)
	}
	return nil
}
