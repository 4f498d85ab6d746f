package group

import (
	"fmt"
	"slices"
)

// Op names a collective method of [Group].
type Op string

// The collective methods.
const (
	OpGather    Op = "gather"
	OpScatter   Op = "scatter"
	OpBroadcast Op = "broadcast"
	OpAllGather Op = "all-gather"
	OpBarrier   Op = "barrier"
	OpSub       Op = "sub"
)

// rooted reports whether the method has a root.
func (o Op) rooted() bool {
	return o == OpGather || o == OpScatter || o == OpBroadcast
}

// Call is what the ranks of a collective call must agree on. It is for those
// who implement [Group].
type Call struct {
	Op Op
	// Root is the root of a gather, scatter or broadcast, else zero.
	Root int
	// Ranks is the list given to Sub, else nil.
	Ranks []int
}

// Equal reports whether two ranks that made the calls c and d made the same.
func (c Call) Equal(d Call) bool {
	return c.Op == d.Op && c.Root == d.Root && slices.Equal(c.Ranks, d.Ranks)
}

// Check returns an error that wraps [ErrInvalid] where a group of size ranks
// cannot serve the call.
func (c Call) Check(size int) error {
	if c.Op.rooted() && (c.Root < 0 || c.Root >= size) {
		return fmt.Errorf("root %d of %d ranks: %w", c.Root, size, ErrInvalid)
	}
	if c.Op == OpSub {
		return checkList(c.Ranks, size)
	}
	return nil
}

// CheckScatter returns an error that wraps [ErrInvalid] unless a scatter's root
// brings one value for each of size ranks.
func CheckScatter(values, size int) error {
	if values != size {
		return fmt.Errorf("%d values for %d ranks: %w", values, size, ErrInvalid)
	}
	return nil
}

func checkList(ranks []int, size int) error {
	if len(ranks) == 0 {
		return fmt.Errorf("no ranks listed: %w", ErrInvalid)
	}
	seen := make([]bool, size)
	for _, r := range ranks {
		if r < 0 || r >= size {
			return fmt.Errorf("rank %d listed of %d ranks: %w", r, size, ErrInvalid)
		}
		if seen[r] {
			return fmt.Errorf("rank %d listed twice: %w", r, ErrInvalid)
		}
		seen[r] = true
	}
	return nil
}

// String writes the call as in "gather(root 3)".
func (c Call) String() string {
	switch {
	case c.Op.rooted():
		return fmt.Sprintf("%s(root %d)", c.Op, c.Root)
	case c.Op == OpSub:
		return fmt.Sprintf("%s(%s)", c.Op, ranksText(c.Ranks))
	}
	return string(c.Op)
}

// Mismatch returns the error of a call in which rank a made the call ca and
// rank b the call cb.
func Mismatch(a int, ca Call, b int, cb Call) *Error {
	if a > b {
		a, ca, b, cb = b, cb, a, ca
	}
	err := fmt.Errorf("rank %d called %v, rank %d called %v: %w", a, ca, b, cb, ErrDisagree)
	return &Error{Op: ca.Op, Ranks: []int{a, b}, Err: err}
}
