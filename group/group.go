// Package group lets the ranks of a job agree: it gathers, scatters and broadcasts bytes, and
// runs steps in which the failure of one rank reaches all ranks. It does not depend on
// checkpoints. Package grouptest holds the contract as a test.
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
	// least one rank and no rank twice. A rank that is not listed gets nil and no
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

// Backed is a capability of groups that can name the transport of their messages.
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

// Call has the properties of a collective call that the ranks must agree on. It is for
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
// cannot serve the call of rank me, which brings that number of values.
func (c Call) Check(me, size, values int) error {
	switch {
	case c.Op.rooted() && (c.Root < 0 || c.Root >= size):
		return fmt.Errorf("root %d of %d ranks: %w", c.Root, size, ErrInvalid)
	case c.Op == OpScatter && me == c.Root && values != size:
		return fmt.Errorf("%d values for %d ranks: %w", values, size, ErrInvalid)
	case c.Op == OpSub:
		return checkList(c.Ranks, size)
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
		return fmt.Sprintf("%s(%s)", c.Op, RanksText(c.Ranks))
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

// Methods makes the collective methods of [Group] of one function. It is for
// implementations of Group, which embed it.
type Methods struct {
	me int
	do CallFunc
}

// CallFunc takes part in a collective call. The values are this rank's value, or one
// for each rank on the root of a scatter. It returns the values of all ranks for a
// gather on its root and for an all-gather, one value for a scatter and for a
// broadcast, and the group, or nil, for a sub.
type CallFunc func(ctx context.Context, c Call, values [][]byte) ([][]byte, Group, error)

// NewMethods returns the methods of rank me, which makes its calls by do.
func NewMethods(me int, do CallFunc) Methods { return Methods{me, do} }

// Rank returns this member's number in the group.
func (m *Methods) Rank() int { return m.me }

// Gather hands every rank's v to root.
func (m *Methods) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	vs, _, err := m.do(ctx, Call{Op: OpGather, Root: root}, [][]byte{v})
	return vs, err
}

// Scatter hands vs[r] of root to rank r.
func (m *Methods) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	return m.fromRoot(ctx, Call{Op: OpScatter, Root: root}, vs)
}

// Broadcast hands root's v to all ranks.
func (m *Methods) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	return m.fromRoot(ctx, Call{Op: OpBroadcast, Root: root}, [][]byte{v})
}

func (m *Methods) fromRoot(ctx context.Context, c Call, vs [][]byte) ([]byte, error) {
	if m.me != c.Root {
		vs = nil
	}
	got, _, err := m.do(ctx, c, vs)
	if err != nil {
		return nil, err
	}
	return got[0], nil
}

// AllGather hands every rank's v to every rank. Ranks may share the slice.
func (m *Methods) AllGather(ctx context.Context, v []byte) ([][]byte, error) {
	vs, _, err := m.do(ctx, Call{Op: OpAllGather}, [][]byte{v})
	return vs, err
}

// Barrier returns once every rank has called it.
func (m *Methods) Barrier(ctx context.Context) error {
	_, _, err := m.do(ctx, Call{Op: OpBarrier}, nil)
	return err
}

// Sub makes a group of some of this group's ranks.
func (m *Methods) Sub(ctx context.Context, ranks []int) (Group, error) {
	// The copy is compared with the lists of ranks that make the call later.
	_, sub, err := m.do(ctx, Call{Op: OpSub, Ranks: slices.Clone(ranks)}, nil)
	return sub, err
}

// Solo returns a group of one rank, for use in a single process. It needs no
// goroutines and its calls never wait.
func Solo() Group { return &solo{NewMethods(0, soloCall)} }

type solo struct{ Methods }

var _ Backed = (*solo)(nil)

func (*solo) Size() int       { return 1 }
func (*solo) Ranks() []int    { return []int{0} }
func (*solo) Backend() string { return "solo" }

// soloCall is every collective call of a single rank.
func soloCall(ctx context.Context, c Call, values [][]byte) ([][]byte, Group, error) {
	err := ContextError(ctx)
	if err == nil {
		err = c.Check(0, 1, len(values))
	}
	if err != nil {
		return nil, nil, &Error{Op: c.Op, Ranks: []int{0}, Err: err}
	}
	return values, Solo(), nil
}
