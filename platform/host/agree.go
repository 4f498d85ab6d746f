package host

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// The methods that are no collective calls of package group, as its errors name
// them.
const (
	opNew     group.Op = "new group"
	opSplit   group.Op = "split"
	opAdopt   group.Op = "adopt"
	opClose   group.Op = "close"
	opTensors group.Op = "tensor collectives"
)

// proposal is what a rank brings to a new group or a split.
type proposal struct {
	// Op is the call that it makes, Call that in words, and Parts a digest of its
	// lists of ranks.
	Op    group.Op
	Call  string
	Parts [sha256.Size]byte
	// Known is the group of its own part that the rank remembers, or none.
	Known identity
}

// verdict is what the ranks have agreed on.
type verdict struct {
	// Odd is the first rank that listed others than rank 0, if any. Then Op is
	// rank 0's, and Calls are those of both.
	Odd   int
	Op    group.Op
	Calls [2]string
	// ID is for the groups that are made.
	ID identity
	// Reuse says for each part whether all members remember one and the same
	// group of it.
	Reuse []bool
}

// agree compares the lists of all ranks of parent and finds the groups that need
// not be made. Whatever is wrong with a list, on whichever rank, is an error on
// all of them.
func (p *Platform) agree(ctx context.Context, op group.Op, parent *Group, parts [][]int) (verdict, error) {
	v, err := group.AllReduce(ctx, parent.inner, string(op), group.JSON[proposal](), group.JSON[verdict](),
		func(context.Context) (proposal, error) { return p.propose(op, parent, parts) },
		func(_ context.Context, all []proposal) (verdict, error) { return decide(parent, parts, all) })
	switch {
	case err != nil:
	case v.Odd != 0:
		// Not an error of the step, which would be filed under the rank that saw it.
		err = fmt.Errorf("rank 0 called %s, rank %d called %s: %w", v.Calls[0], v.Odd, v.Calls[1], group.ErrDisagree)
		err = &group.Error{Op: v.Op, Ranks: []int{0, v.Odd}, Err: err}
	case len(v.Reuse) != len(parts):
		err = fmt.Errorf("%s: a verdict on %d of %d parts: %w", op, len(v.Reuse), len(parts), group.ErrDisagree)
	}
	return v, err
}

func (p *Platform) propose(op group.Op, parent *Group, parts [][]int) (proposal, error) {
	out := proposal{Op: op, Call: callText(op, parts)}
	if err := checkParts(parent, parts); err != nil {
		return out, err
	}
	h := sha256.New()
	for _, part := range parts {
		b := binary.AppendUvarint(nil, uint64(len(part)))
		for _, r := range part {
			b = binary.AppendUvarint(b, uint64(r))
		}
		h.Write(b)
		if slices.Contains(part, p.world.Rank()) {
			if g := p.lookup(part); g != nil {
				out.Known = g.id
			}
		}
	}
	h.Sum(out.Parts[:0])
	return out, nil
}

// checkParts returns an error unless the parts are lists of parent's ranks
// without any twice.
func checkParts(parent *Group, parts [][]int) error {
	if len(parts) == 0 {
		return fmt.Errorf("no parts: %w", group.ErrInvalid)
	}
	there := make(map[int]bool, parent.Size()) // whether a rank is yet in no part
	for _, r := range parent.Ranks() {
		there[r] = true
	}
	for i, part := range parts {
		if len(part) == 0 {
			return fmt.Errorf("no ranks in list %d of %d: %w", i+1, len(parts), group.ErrInvalid)
		}
		for _, r := range part {
			fresh, ok := there[r]
			if !ok {
				return fmt.Errorf("rank %d listed, which is not there: %w", r, group.ErrInvalid)
			}
			if !fresh {
				return fmt.Errorf("rank %d listed twice: %w", r, group.ErrInvalid)
			}
			there[r] = false
		}
	}
	return nil
}

// decide runs on the first rank of parent with the proposals of all.
func decide(parent *Group, parts [][]int, all []proposal) (verdict, error) {
	for r, q := range all {
		if q.Parts != all[0].Parts {
			return verdict{Odd: r, Op: all[0].Op, Calls: [2]string{all[0].Call, q.Call}}, nil
		}
	}
	v := verdict{ID: newID(), Reuse: make([]bool, len(parts))}
	for i, part := range parts {
		first, err := parent.LocalRank(part[0])
		if err != nil {
			return verdict{}, err
		}
		v.Reuse[i] = all[first].Known != identity{}
		for _, r := range part {
			l, err := parent.LocalRank(r)
			if err != nil {
				return verdict{}, err
			}
			v.Reuse[i] = v.Reuse[i] && all[l].Known == all[first].Known
		}
	}
	return v, nil
}
