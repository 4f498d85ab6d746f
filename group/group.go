// Package group lets the ranks of a job agree: it gathers, scatters and
// broadcasts bytes, and runs steps whose failure on any rank reaches all of
// them. It knows nothing of checkpoints and imports nothing else of this
// module. Package grouptest holds the contract as a test.
package group

import "context"

// Group is a set of ranks that act together. Every rank must call the same
// collective methods in the same order; Rank, Size and Ranks are local.
//
// # Contract
//
//   - A collective call has one outcome, the same on every rank: either it
//     completes everywhere or every rank returns an [*Error] of the same text.
//   - Where a rank's context ends before the call has completed, the call fails
//     on all ranks at once with an error that names that rank and wraps the
//     context's error and cause (see [ContextError]); ranks that arrive later
//     get the same error without waiting.
//   - Ranks that make different calls, or the same one with another root or
//     list, get an error that wraps [ErrDisagree] and names ranks that differ.
//     An argument that cannot be served, such as a root out of range, fails the
//     call on all ranks with [ErrInvalid].
//   - After a failed call the group can be used again, by the next call, unless
//     a rank is gone for good: then every call fails at once with [ErrGone].
//   - Slices that go in are the group's from then on: it may hand them to other
//     ranks as they are, so the caller must not write to them again. Slices
//     that come out may be shared with other ranks and must not be written to.
//   - A nil slice and an empty one are the same.
//   - One rank's calls on one group must not overlap; calls of different ranks
//     and on different groups do.
type Group interface {
	// Rank returns this member's number in the group, from 0.
	Rank() int
	// Size returns the number of members.
	Size() int
	// Ranks returns the members' numbers in the outermost group, in the order
	// of this group's ranks.
	Ranks() []int
	// Gather hands every rank's v to root, in the order of the ranks. The
	// others get nil.
	Gather(ctx context.Context, root int, v []byte) ([][]byte, error)
	// Scatter hands vs[r] of root to rank r. The others' vs are ignored. A root
	// that does not bring one value a rank fails the call with [ErrInvalid].
	Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error)
	// Broadcast hands root's v to all ranks.
	Broadcast(ctx context.Context, root int, v []byte) ([]byte, error)
	// AllGather hands every rank's v to every rank, in the order of the ranks.
	AllGather(ctx context.Context, v []byte) ([][]byte, error)
	// Barrier returns once every rank has called it.
	Barrier(ctx context.Context) error
	// Sub makes a group of some of this group's ranks, in the order given,
	// independent of this group and of any other made from the same list.
	// Every rank of this group must call it with the same list, which names at
	// least one rank and none twice. A rank that is not listed gets nil and no
	// error.
	Sub(ctx context.Context, ranks []int) (Group, error)
}
