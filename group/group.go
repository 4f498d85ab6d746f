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
//     completes everywhere or every rank returns an error. Where a rank's
//     context ends before the call has completed, the call fails on all ranks
//     at once with an error that names that rank (see [Error]); ranks that
//     arrive later get the same error without waiting.
//   - After a failed call the group can be used again, by the next call.
//   - Byte slices that go in may be read until the call returns, and are not
//     written to; slices that come out belong to the caller, who must not write
//     to them where the group documents sharing.
//   - A nil slice and an empty one are the same.
//   - One rank's calls must not overlap; different ranks' calls do.
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
	// Scatter hands vs[r] of root to rank r. The others' vs are ignored.
	Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error)
	// Broadcast hands root's v to all ranks.
	Broadcast(ctx context.Context, root int, v []byte) ([]byte, error)
	// AllGather hands every rank's v to every rank, in the order of the ranks.
	AllGather(ctx context.Context, v []byte) ([][]byte, error)
	// Barrier returns once every rank has called it.
	Barrier(ctx context.Context) error
	// Sub makes a group of some of this group's ranks, in the order given.
	// Every rank of this group must call it with the same list. A rank that is
	// not listed gets nil and no error.
	Sub(ctx context.Context, ranks []int) (Group, error)
}
