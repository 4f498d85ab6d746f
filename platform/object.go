package platform

import "context"

// ObjectComm moves bytes between the ranks of a group. The functions [AllGather],
// [Gather], [Scatter], [Broadcast], [Send] and [Recv] do so with values.
//
// # Contract
//
// It is that of [group.Group] and [group.Messenger], with the group as an
// argument: collective calls have one outcome; nobody waits for a rank that has
// gone; slices that go in must not be written to again, except those that Send
// took; slices that come out may be shared, except those of Recv. One rank's
// collective calls on one group must not overlap.
type ObjectComm interface {
	AllGatherer
	// Gather hands every rank's v to root, in the order of the ranks. The
	// others get nil.
	Gather(ctx context.Context, g Group, root int, v []byte) ([][]byte, error)
	// Scatter hands vs[r] of root to rank r. The others' vs are ignored.
	Scatter(ctx context.Context, g Group, root int, vs [][]byte) ([]byte, error)
	// Broadcast hands root's v to all ranks.
	Broadcast(ctx context.Context, g Group, root int, v []byte) ([]byte, error)
	// Send hands v to rank to. Where the group has no messages between two
	// ranks the error wraps [errors.ErrUnsupported].
	Send(ctx context.Context, g Group, to, tag int, v []byte) error
	// Recv returns the next message that rank from sent to this one with tag.
	Recv(ctx context.Context, g Group, from, tag int) ([]byte, error)
}

// AllGatherer is the least that ranks need to talk. [OverAllGather] makes the
// rest of [ObjectComm] of it.
type AllGatherer interface {
	// AllGather hands every rank's v to every rank, in the order of the ranks.
	AllGather(ctx context.Context, g Group, v []byte) ([][]byte, error)
}
