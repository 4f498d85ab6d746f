package collective

import (
	"cmp"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
)

// Algorithm is a way to carry out a collective call.
type Algorithm uint8

// The algorithms.
const (
	// Auto chooses by the number of bytes and ranks.
	Auto Algorithm = iota
	// Eager lets the elements travel with the messages by which ranks agree on
	// the call, in log2(n) steps. It is for up to 60 KiB in all.
	Eager
	// Tree sends whole tensors along a binomial tree: for all-reduce and
	// broadcast, in up to 2·log2(n) steps.
	Tree
	// Ring sends pieces from each rank to the next, so that every rank sends and
	// receives as little as possible. A broadcast is a chain.
	Ring
	// Direct is Ring for reductions whose partial results are larger than
	// elements: these go straight to the rank that reduces them.
	Direct
)

var algorithmNames = [...]string{Auto: "auto", Eager: "eager", Tree: "tree", Ring: "ring", Direct: "direct"}

// String returns the name, such as "ring".
func (a Algorithm) String() string {
	if int(a) >= len(algorithmNames) {
		return fmt.Sprintf("algorithm %d", uint8(a))
	}
	return algorithmNames[a]
}

const (
	// maxEager bounds what travels with the agreement: such a message must be
	// one that a [group.Messenger] takes without waiting.
	maxEager = 60 << 10
	// smallestPiece holds at least one element of any type, and an exact number
	// of them.
	smallestPiece = 64
	// maxTree bounds what goes along a tree in one message.
	maxTree = 4 << 20
	// manyRanks is from how many on Auto is not Direct: a rank would have as many
	// connections.
	manyRanks = 33
)

// Options are the settings of a [Comm], the same on all ranks. Nil and zero
// fields mean the defaults, which are those that were measured to be best.
type Options struct {
	// Algorithm is used wherever a call knows it. Zero: Auto.
	Algorithm Algorithm
	// EagerBytes is up to how many bytes of all ranks together Auto is Eager, 60
	// KiB at most. Zero: 8 KiB. Negative: none.
	EagerBytes int
	// TreeBytes is up to how many bytes for each rank of the group Auto is Tree,
	// up to 4 MiB in all. Zero: 64 KiB. Negative: none.
	TreeBytes int
	// PieceBytes is how many bytes of elements a message of a ring carries,
	// rounded down to a multiple of 64, and at least that. Zero: 2 MiB. Negative
	// ones are refused, as are negative InFlight, with [group.ErrInvalid].
	PieceBytes int
	// InFlight bounds how many collective calls run at the same time. Zero: 8.
	InFlight int
}

func (o *Options) withDefaults() (Options, error) {
	var v Options
	if o != nil {
		v = *o
	}
	if int(v.Algorithm) >= len(algorithmNames) || v.PieceBytes < 0 || v.InFlight < 0 {
		return v, fmt.Errorf("collectives by %v, pieces of %d bytes, %d calls in flight: %w",
			v.Algorithm, v.PieceBytes, v.InFlight, group.ErrInvalid)
	}
	v.EagerBytes = min(cmp.Or(v.EagerBytes, 8<<10), maxEager)
	v.TreeBytes = cmp.Or(v.TreeBytes, 64<<10)
	v.PieceBytes = max(cmp.Or(v.PieceBytes, 2<<20)/smallestPiece*smallestPiece, smallestPiece)
	v.InFlight = cmp.Or(v.InFlight, 8)
	return v, nil
}

// The tags of a Comm's messages, all of them between [group.CollectiveTags] and
// [group.LoadTags].
const (
	firstTag  = group.CollectiveTags // of [Comm.Send], one for each tag
	noticeTag = 1 << 29              // a rank's Comm is broken
	callTag   = 1 << 30              // of collective calls, by their number

	// MaxTag is the highest tag of [Comm.Send] and [Comm.Recv].
	MaxTag = noticeTag - firstTag - 1
)

// lane tells apart what one call sends between two ranks.
type lane int

const (
	agreeLane lane = iota
	dataLane
	rowsLane
	fitLane
	passLane
	lanes
)

// numbers is how many calls have tags of their own. Calls so far apart are never
// in flight together.
const numbers = 1 << 22

func tagOf(seq uint64, l lane) int { return callTag + int(seq%numbers)*int(lanes) + int(l) }

const _ = uint(group.LoadTags - callTag - numbers*int(lanes)) // they fit
