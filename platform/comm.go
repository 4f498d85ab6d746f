package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// Comm returns g as a [group.Group], so that what takes one, saving and loading
// above all, runs on any platform: the group inside of g where it has one, else
// the platform's own methods. In that case Sub lists ranks in ascending order and
// makes the groups of [Groups.Split], which are shared by all who list the same.
//
// The error for no group wraps [group.ErrInvalid]: a nil group.Group often stands
// for a rank on its own.
func Comm(p Platform, g Group) (group.Group, error) {
	if err := needGroup("comm", g); err != nil {
		return nil, err
	}
	if w, ok := g.(interface{ Unwrap() group.Group }); ok {
		return w.Unwrap(), nil
	}
	return &comm{Group: g, p: p}, nil
}

// comm is a group by the methods of a platform.
type comm struct {
	Group
	p Platform
}

var _ group.Group = (*comm)(nil)

func (c *comm) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	return c.p.Gather(ctx, c.Group, root, v)
}

func (c *comm) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	return c.p.Scatter(ctx, c.Group, root, vs)
}

func (c *comm) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	return c.p.Broadcast(ctx, c.Group, root, v)
}

func (c *comm) AllGather(ctx context.Context, v []byte) ([][]byte, error) {
	return c.p.AllGather(ctx, c.Group, v)
}

func (c *comm) Barrier(ctx context.Context) error { return c.p.Barrier(ctx, c.Group) }

func (c *comm) Sub(ctx context.Context, ranks []int) (group.Group, error) {
	var global []int
	err := group.Each(ctx, c, string(group.OpSub), func(context.Context) (err error) {
		global, err = c.ascending(ranks)
		return err
	})
	if err != nil { // on all ranks, so that none waits for this one
		return nil, &group.Error{Op: group.OpSub, Ranks: group.Ranks(err), Err: err}
	}
	sub, err := c.p.Split(ctx, c.Group, [][]int{global})
	if err != nil || sub == nil {
		return nil, err
	}
	return Comm(c.p, sub)
}

// ascending returns the numbers of the group's ranks in the group of all.
func (c *comm) ascending(ranks []int) ([]int, error) {
	global := make([]int, len(ranks))
	for i, r := range ranks {
		var err error
		if global[i], err = c.GlobalRank(r); err != nil {
			return nil, err
		}
	}
	if !slices.IsSorted(global) {
		return nil, fmt.Errorf("ranks %v are not in ascending order: %w", global, errors.ErrUnsupported)
	}
	return global, nil
}
