package collective

import (
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
)

var algorithmNames = [...]string{Auto: "auto", Eager: "eager", Tree: "tree", Ring: "ring"}

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
)

// Options are the settings of a [Comm], the same on all ranks. Nil and zero
// fields mean the defaults, which are those that were measured to be best.
type Options struct {
	// Algorithm is used wherever a call knows it. Zero: Auto.
	Algorithm Algorithm
	// EagerBytes is up to how many bytes of all ranks together Auto is Eager, 60
	// KiB at most. Zero: 32 KiB. Negative: none.
	EagerBytes int
	// TreeBytes is up to how many bytes for each rank of the group Auto is Tree.
	// Zero: 16 KiB. Negative: none.
	TreeBytes int
	// PieceBytes is how many bytes of elements a message of a ring carries,
	// rounded to a multiple of 64. Zero: 512 KiB.
	PieceBytes int
	// InFlight bounds how many collective calls run at the same time. Zero: 8.
	InFlight int
}

func (o *Options) withDefaults() (Options, error) {
	var v Options
	if o != nil {
		v = *o
	}
	v.EagerBytes = min(orElse(v.EagerBytes, 32<<10), maxEager)
	v.TreeBytes = orElse(v.TreeBytes, 16<<10)
	v.PieceBytes = orElse(v.PieceBytes, 512<<10) / smallestPiece * smallestPiece
	v.PieceBytes = max(v.PieceBytes, smallestPiece)
	v.InFlight = orElse(v.InFlight, 8)
	if int(v.Algorithm) >= len(algorithmNames) || v.InFlight < 0 {
		return v, fmt.Errorf("%v, %d calls in flight: %w", v.Algorithm, v.InFlight, group.ErrInvalid)
	}
	return v, nil
}

func orElse(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

// choose returns the algorithm for a call whose elements take so many bytes on
// one rank and on all together where they travel with the agreement.
func (c *Comm) choose(k kind, bytes, all int64) Algorithm {
	eager := int64(c.o.EagerBytes)
	if c.o.Algorithm == Eager {
		eager = maxEager
	}
	tree := k == allReduce || k == broadcast
	switch {
	case c.size == 1 || c.o.Algorithm <= Eager && all <= eager:
		return Eager
	case c.o.Algorithm == Tree && tree, c.o.Algorithm == Auto && tree && bytes <= int64(c.o.TreeBytes)*int64(c.size):
		return Tree
	}
	return Ring
}
