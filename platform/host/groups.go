package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

// World returns the group of all ranks.
func (p *Platform) World() platform.Group { return p.world }

// New returns the group of the ranks, nil where this one is none of them.
func (p *Platform) New(ctx context.Context, ranks []int) (platform.Group, error) {
	return p.split(ctx, opNew, p.world, [][]int{ranks})
}

// Split makes a group of each of the parts and returns this rank's. Before any is
// made the ranks of parent agree on the lists and on the groups that all members
// remember, in one step of package group; then each of the others costs a call.
func (p *Platform) Split(ctx context.Context, parent platform.Group, parts [][]int) (platform.Group, error) {
	return p.split(ctx, opSplit, parent, parts)
}

// split is Split for a call of that name.
func (p *Platform) split(ctx context.Context, op group.Op, parent platform.Group, parts [][]int) (platform.Group, error) {
	from, err := p.use(op, parent)
	if err != nil {
		return nil, err
	}
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i] = slices.Sorted(slices.Values(parts[i]))
	}
	v, err := p.agree(ctx, op, from, parts)
	if err != nil {
		return nil, err
	}
	mine, made, err := p.build(ctx, from, parts, v)
	if err != nil || mine == nil {
		return nil, err // not a nil *Group in a platform.Group
	}
	if made {
		p.remember(mine)
	}
	return mine, nil
}

// build makes the groups that are to be made. It returns this rank's and whether
// that is a new one.
func (p *Platform) build(ctx context.Context, from *Group, parts [][]int, v verdict) (mine *Group, made bool, err error) {
	me := p.world.Rank()
	for i, part := range parts {
		member := slices.Contains(part, me)
		if v.Reuse[i] {
			if member {
				mine = p.lookup(part)
			}
			continue
		}
		locals := make([]int, len(part))
		for k, r := range part {
			if locals[k], err = from.LocalRank(r); err != nil {
				return nil, false, err
			}
		}
		sub, err := from.inner.Sub(ctx, locals)
		if err != nil {
			return nil, false, fmt.Errorf("group of ranks %v: %w", part, err)
		}
		if member {
			mine, made = p.newGroup(sub, part, v.ID), true
		}
	}
	return mine, made, nil
}

// Lookup returns the group of the ranks that this rank remembers.
func (p *Platform) Lookup(ranks []int) (platform.Group, bool) {
	if g := p.lookup(ranks); g != nil {
		return g, true
	}
	return nil, false
}

// Adopt remembers groups of this platform; see [Platform.Wrap] for others, and
// for which of those New and Split find again.
func (p *Platform) Adopt(groups ...platform.Group) error {
	own := make([]*Group, len(groups))
	for i, g := range groups {
		var err error
		if own[i], err = p.use(opAdopt, g); err != nil {
			return err
		}
	}
	for _, g := range own {
		p.remember(g)
	}
	return nil
}

// Wrap returns a group that was made from the platform's world by other means,
// as [group.Group.Sub] does, for use with the platform. It is not remembered
// until it is adopted, and then Lookup finds it; New and Split do so only where
// all members have adopted one whose method ID() [16]byte says that it is the same
// (those of package tcp have one), and make another otherwise.
//
// As all groups of a platform it has its ranks in ascending order. One that has
// not, has others than the world's, or is nil, is an error that wraps
// [group.ErrInvalid].
func (p *Platform) Wrap(g group.Group) (*Group, error) {
	if g == nil {
		return nil, fmt.Errorf("wrap: no group; a rank that is no member has none: %w", group.ErrInvalid)
	}
	outer := p.world.inner.Ranks()
	ranks := g.Ranks()
	for i, r := range ranks {
		if ranks[i] = slices.Index(outer, r); ranks[i] < 0 {
			return nil, fmt.Errorf("wrap group of ranks %v: %d is not in the world: %w", g.Ranks(), r, group.ErrInvalid)
		}
	}
	if !slices.IsSorted(ranks) {
		return nil, fmt.Errorf("wrap group of the world's ranks %v, which do not ascend: %w", ranks, group.ErrInvalid)
	}
	return p.newGroup(g, ranks, identityOf(g)), nil
}

// Close leaves the group and forgets it. With the world all go.
func (p *Platform) Close(_ context.Context, g platform.Group) error {
	if own, ok := g.(*Group); ok && own != nil && own.p == p && own.closed.Load() {
		return nil
	}
	own, err := p.use(opClose, g)
	if err != nil {
		return err
	}
	for _, gone := range p.forget(own) {
		err = errors.Join(err, gone.leave())
	}
	return errors.Join(err, own.leave())
}
