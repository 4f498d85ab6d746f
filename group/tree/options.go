package tree

import "time"

// DefaultArity is how many ranks stand below one where nothing else is said.
const DefaultArity = 8

// Options says how a node behaves. All nodes of a tree need the same.
type Options struct {
	// Arity is how many ranks stand below one. Zero: [DefaultArity].
	Arity int
	// Timeout is how long a neighbour may be silent before it counts as gone;
	// nodes send signs of life four times as often. Zero: for ever.
	Timeout time.Duration
	// MaxValue bounds the bytes of one value. Zero: 1 GiB.
	MaxValue int
}

func (o Options) withDefaults() Options {
	if o.Arity <= 0 {
		o.Arity = DefaultArity
	}
	if o.MaxValue <= 0 {
		o.MaxValue = 1 << 30
	}
	return o
}

const (
	// maxInline bounds a value that travels with the call itself, maxMerged all
	// those of a subtree. Larger ones wait until all ranks have come.
	maxInline = 64 << 10
	maxMerged = 1 << 20
	// maxPiece is the most of a value that one frame carries.
	maxPiece = 256 << 10
	// window is how many bytes of a group's pieces may be under way on a link in
	// one direction before the receiver has passed them on.
	window = 1 << 20
	// ahead is how many pieces a rank hands to its links before they are sent.
	ahead = 4
	// maxEarly bounds the bytes of frames for a group that this rank has yet to
	// learn of.
	maxEarly = 16 << 20
)

// MaxFrame bounds the length of a frame. It is above all that a group of a
// hundred thousand ranks needs.
const MaxFrame = 4 << 20
