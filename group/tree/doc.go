// Package tree makes groups out of links between neighbours in a tree, so that
// no rank holds a link to each of thousands. It knows nothing of what carries the
// links: sockets, memory or a simulation, behind [Conn] and [Network]. The
// contract is that of [group.Group]; the protocol is below.
//
// # Shape
//
// Rank 0 is on top of the tree. The other ranks are cut into k ranges of equal
// length, or lengths that differ by one, if k is the arity. The first rank of each
// range is below rank 0, and on top of the rest of its range, which is cut in the
// same way. So the subtrees of a rank are of equal size, and the tree is as flat as
// a tree of this arity can be. Every group has its own tree, of its own ranks. The
// lower of two neighbours opens the link between them, which serves all groups in
// which it is below the other. Links are opened when a group is made.
//
// # A call
//
// Calls are numbered. A rank that makes one sends up what it calls and what it
// brings, merged with what came from below, once all below have come (enter). What
// cannot succeed is sent up at once: a context that has ended, an argument that
// cannot be served, ranks that differ (fail). Rank 0 decides the outcome, the
// first failure or the success of all, and sends it down (outcome): so all ranks
// return the same. A rank whose context ends waits for the decision too, which is
// quick, or the link is dead. Ranks that come late to a failed call find its
// outcome.
//
// Values of up to 64 KiB, 1 MiB in a subtree, travel with these frames. Where
// there are larger ones rank 0 lets them go (go) when all have come; they take the
// shortest way in the tree in pieces, to one rank or to all; and ranks report up
// when they have what they want (done). As nothing travels before all are ready
// for it, no piece waits for a rank that is busy elsewhere.
//
// # A link
//
// Pieces are flow controlled, each group's by itself (lane): at most 1 MiB of a
// group is under way on a link in one direction, until the receiver has passed it
// on (credit). In one group, up-links wait for up-links above them or for
// down-links, and those for down-links below them only, so there is always one
// that moves. That holds for no two groups together: the trees of three that have
// the same ranks in other orders may be a circle. So groups never wait for each
// other; where several have pieces for a link they take turns, piece by piece. All
// other frames are short and overtake pieces, and a node always reads.
//
// Beside the values that it gets, a rank thus holds at most 1 MiB for each
// neighbour in each group that has a large call under way. A group that is over
// gives up what it has queued, and room that it was not given back goes with it.
//
// # Ranks that go
//
// A link that breaks, is silent for the timeout, or does not come up within two
// timeouts means that the rank at its other end is gone: in each group with that
// rank, rank 0 receives a report, decides that the group is over and tells all
// ranks (lost). If the rank above is gone, the ranks below it receive the same
// from the rank that noticed. Every undecided call and every later one fails and
// names that rank. A rank that leaves is reported in the same way.
//
// # Frames
//
// A frame is a byte that says its kind, the group's id of 16 bytes, the number of
// the call as a varint, and what the kind has beside; see frame.go. Numbers are
// bounded before they are believed, and no frame is longer than [MaxFrame].
package tree
