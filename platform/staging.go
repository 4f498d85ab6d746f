package platform

import (
	"context"
	"errors"
)

// ErrCeiling reports a state that does not fit into the memory of a [Stager].
var ErrCeiling = errors.New("the state does not fit into the staging memory")

// Staging is the capability of platforms that copy states aside, so that training can
// go on while the copy is saved.
type Staging interface {
	// NewStager returns a stager with copies of at most ceiling bytes of host memory together.
	NewStager(ceiling int64) (Stager, error)
	// Executors returns the executors of this platform.
	Executors() []Executor
}

// Stager copies the states of one rank aside. It keeps its memory from state to state:
// a state that follows a released one finds memory that is in use already. Its methods
// are safe for concurrent use.
type Stager interface {
	// Stage returns a deep copy of tree, as far as [MapLeaves] opens it, with its tensors in
	// host memory. When it returns, the caller may change the tree. Memory that several tensors
	// share is copied once, and their copies share it. Placeholders have no memory and stay as
	// they are. If a value has a type that cannot be copied, the error names its place.
	//
	// The copy is valid until release is called. If it does not fit beside the
	// copies that are not released, the error wraps [ErrCeiling].
	Stage(ctx context.Context, tree any) (copy any, release func(), err error)
	// Close returns the memory to the system. No copy may be in use any more.
	Close() error
}

// Executor is a way to save a staged state.
type Executor uint8

const (
	// Goroutine is a goroutine of this process, as of [Async]. The save ends with the
	// process.
	Goroutine Executor = iota + 1
	// Process is a process of its own, which completes a save even if this process
	// ends when the state is staged.
	Process
)

// String returns "goroutine" or "process".
func (e Executor) String() string {
	switch e {
	case Goroutine:
		return "goroutine"
	case Process:
		return "process"
	}
	return "unknown executor"
}
