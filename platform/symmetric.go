package platform

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/group"
)

// ErrHosts reports ranks that cannot share memory, because they are on different hosts or in
// containers that do not see each other's processes.
var ErrHosts = errors.New("the ranks are not on one host")

func init() { group.RegisterError("platform.hosts", ErrHosts) }

// SymmetricMemory is the capability of platforms with ranks that can reach into each other's
// memory.
type SymmetricMemory interface {
	// Symmetric makes memory of n bytes of zeros for each rank of g. It is a collective call,
	// with the same n on all ranks, and fails on all ranks or on none: with [ErrHosts] if the
	// ranks cannot share memory, and with [group.ErrInvalid] if n is not positive or the host has
	// less memory than all ranks ask for. The caller closes the memory.
	Symmetric(ctx context.Context, g Group, n int64) (Symmetric, error)
}

// Symmetric is memory of each rank of a group that all of them read and write. Barriers and
// signals order the accesses: a rank sees all writes of another one before a barrier of both,
// or before a signal that it has waited for. Accesses that they do not order are a data race.
//
// Barrier is for one goroutine at a time, the other methods for any. A rank that has died or
// closed its memory fails the barriers and waits of the others with [group.ErrGone]; its
// writes stay. The numbers of ranks are those in the group.
type Symmetric interface {
	// Memory returns the memory of a rank, of n bytes, or nil if there is no such rank.
	Memory(rank int) []byte
	// Barrier returns once every rank has called it. If the context of a rank ends, all ranks
	// get an error.
	Barrier(ctx context.Context) error
	// Signal sends a signal to a rank. Signals on one channel, a number from 0 on, are counted;
	// a second one may wait until the receiver has taken the first.
	Signal(ctx context.Context, to, channel int) error
	// Wait takes a signal that a rank has sent to this one, and waits until there is one.
	Wait(ctx context.Context, from, channel int) error
	// Close ends this rank's use of all memory. The slices that Memory returned must not be used
	// after that. A second Close has no effect.
	Close() error
}
