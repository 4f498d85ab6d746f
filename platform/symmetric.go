package platform

import "context"

// SymmetricMemory is the capability of platforms whose ranks can reach into each
// other's memory.
type SymmetricMemory interface {
	// Symmetric returns memory of n bytes of each rank of g, in the order of the
	// ranks, all of which this rank may read and write. It is a collective call,
	// with the same n on all ranks. Who writes when is the callers' to agree on.
	Symmetric(ctx context.Context, g Group, n int64) ([][]byte, error)
}
