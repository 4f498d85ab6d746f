package platform

import "context"

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
//     calls them with the same lists and in the same order, also where it will be
//     no member and where the group is remembered. They have one outcome. Ranks
//     that call with different lists get an error that wraps
//     [group.ErrDisagree]; ranks of which some call this and some another
//     collective method get that of the group's contract.
//   - A group's ranks are in ascending order whatever the list's was, so one set
//     of ranks is one group: where all members remember it they get it again.
//   - A list that is empty, or names a rank twice or one that is not there,
//     fails the call on all ranks with [group.ErrInvalid].
//   - A rank that is no member gets nil and no error. No method takes a nil
//     Group for the world: it is refused with [group.ErrInvalid], so that a rank
//     that forgot to look does not take part in somebody else's call.
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
