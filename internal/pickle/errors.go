package pickle

import "errors"

var (
	// ErrMalformed reports bytes that are no pickle, or a pickle that no Python
	// writes.
	ErrMalformed = errors.New("malformed pickle")
	// ErrLimit reports a pickle or value that is beyond the limits.
	ErrLimit = errors.New("pickle exceeds a limit")
	// ErrPersistent reports a persistent id that nobody asked for, or that its
	// resolver refused.
	ErrPersistent = errors.New("persistent id in pickle")
	// ErrUnknownClass reports a class that is neither known nor allowed.
	ErrUnknownClass = errors.New("unknown class")
	// ErrUnsupported reports a value or opcode that this package does not handle.
	ErrUnsupported = errors.New("unsupported in pickles")
	// ErrCycle reports a value that contains itself.
	ErrCycle = errors.New("value contains itself")
)
