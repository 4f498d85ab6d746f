// Package group lets the ranks of a job agree: it gathers, scatters and
// broadcasts bytes, and runs steps whose failure on any rank reaches all of
// them. It knows nothing of checkpoints. Package grouptest holds the contract as a
// test.
package group

import (
	"context"
	"fmt"
	"slices"
)

// Group is a set of ranks that act together. Every rank must call the same
// collective methods in the same order; Rank, Size and Ranks are local.
//
// # Contract
//
//   - A collective call has one outcome, the same on every rank: either it
//     completes everywhere or every rank returns an [*Error] of the same text.
//   - If a rank's context ends before the call has completed, the call fails
//     on all ranks at once with an error that names that rank and wraps the
//     context's error and cause (see [ContextError]); ranks that arrive later
//     get the same error without waiting.
//   - Ranks that make different calls, or the same one with another root or
//     list, get an error that wraps [ErrDisagree] and names ranks that differ.
//     An argument that cannot be served, such as a root out of range, fails the
//     call on all ranks with [ErrInvalid].
//   - After a failed call the group can be used again, by the next call, unless
//     a rank is gone for good: then every call fails at once with [ErrGone].
//   - Slices that go in are the group's from then on: it may hand them to other
//     ranks as they are, so the caller must not write to them again. Slices
//     that come out may be shared with other ranks and must not be written to.
//   - A nil slice and an empty one are the same.
//   - One rank's calls on one group must not overlap; calls of different ranks
//     and on different groups do.
type Group interface {
	// Rank returns this member's number in the group, from 0.
	Rank() int
	// Size returns the number of members.
	Size() int
	// Ranks returns the members' numbers in the outermost group, in the order
	// of this group's ranks.
	Ranks() []int
	// Gather hands every rank's v to root, in the order of the ranks. The
	// others get nil.
	Gather(ctx context.Context, root int, v []byte) ([][]byte, error)
	// Scatter hands vs[r] of root to rank r. The others' vs are ignored. A root
	// that does not bring one value a rank fails the call with [ErrInvalid].
	Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error)
	// Broadcast hands root's v to all ranks.
	Broadcast(ctx context.Context, root int, v []byte) ([]byte, error)
	// AllGather hands every rank's v to every rank, in the order of the ranks.
	AllGather(ctx context.Context, v []byte) ([][]byte, error)
	// Barrier returns once every rank has called it.
	Barrier(ctx context.Context) error
	// Sub makes a group of some of this group's ranks, in the order given,
	// independent of this group and of any other made from the same list.
	// Every rank of this group must call it with the same list, which names at
	// least one rank and none twice. A rank that is not listed gets nil and no
	// error.
	Sub(ctx context.Context, ranks []int) (Group, error)
}

// Leaver is a capability of groups that a rank can leave while the others go on.
type Leaver interface {
	// Leave marks this rank as gone for good, from the group and from all that
	// were made from it: calls of the others that wait for it, and all later
	// ones, fail with [ErrLeft] and with err, if that is not nil. Leaving
	// twice is the same as leaving once.
	Leave(err error)
}

// Backed is a capability of groups that can say what carries their messages.
type Backed interface {
	// Backend returns a name such as "tcp".
	Backend() string
}

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

// Call is what the ranks of a collective call must agree on. It is for
// implementations of [Group].
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

// Check returns an error that wraps [ErrInvalid] if a group of size ranks
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

// Solo returns a group of one rank, for use in a single process. It needs no
// goroutines and its calls never wait.
func Solo() Group { return solo{} }

type solo struct{}

var (
	_ Group  = solo{}
	_ Backed = solo{}
)

func (solo) Rank() int       { return 0 }
func (solo) Size() int       { return 1 }
func (solo) Ranks() []int    { return []int{0} }
func (solo) Backend() string { return "solo" }

// enter is what every collective call of a single rank comes to.
func (solo) enter(ctx context.Context, c Call) error {
	err := ContextError(ctx)
	if err == nil {
		err = c.Check(1)
	}
	return soloError(c.Op, err)
}

func soloError(op Op, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Ranks: []int{0}, Err: err}
}

func (s solo) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	if err := s.enter(ctx, Call{Op: OpGather, Root: root}); err != nil {
		return nil, err
	}
	return [][]byte{v}, nil
}

func (s solo) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	if err := s.enter(ctx, Call{Op: OpScatter, Root: root}); err != nil {
		return nil, err
	}
	if err := CheckScatter(len(vs), 1); err != nil {
		return nil, soloError(OpScatter, err)
	}
	return vs[0], nil
}

func (s solo) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	if err := s.enter(ctx, Call{Op: OpBroadcast, Root: root}); err != nil {
		return nil, err
	}
	return v, nil
}

func (s solo) AllGather(ctx context.Context, v []byte) ([][]byte, error) {
	if err := s.enter(ctx, Call{Op: OpAllGather}); err != nil {
		return nil, err
	}
	return [][]byte{v}, nil
}

func (s solo) Barrier(ctx context.Context) error {
	return s.enter(ctx, Call{Op: OpBarrier})
}

func (s solo) Sub(ctx context.Context, ranks []int) (Group, error) {
	if err := s.enter(ctx, Call{Op: OpSub, Ranks: ranks}); err != nil {
		return nil, err
	}
	return solo{}, nil
}
