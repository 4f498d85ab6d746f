package tree_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/internal/deep"
)

// overlap is a tree with ranks that make calls on several groups at once.
type overlap struct {
	size, arity int
	groups      []busyGroup
}

// busyGroup makes its calls one after the other.
type busyGroup struct {
	ranks []int // nil: the group of all
	calls []busyCall
}

// busyCall is a call with values of that number of bytes, empty for every third rank.
type busyCall struct {
	op    group.Op
	root  int
	bytes int
}

// fills is more than a link in memory holds while no rank receives: 1 MiB.
const fills = 1<<20 + 256<<10

// filled has a value for each rank.
var filled = func() (vs [16][]byte) {
	for r := range vs {
		vs[r] = bytes.Repeat([]byte{byte(r + 1)}, fills)
	}
	return vs
}()

// value returns the value of the call for a rank.
func (c busyCall) value(rank int) []byte {
	if rank%3 == 2 {
		return nil
	}
	return filled[rank][:c.bytes]
}

// values returns the values for all ranks.
func (c busyCall) values(size int) [][]byte {
	vs := make([][]byte, size)
	for r := range vs {
		vs[r] = c.value(r)
	}
	return vs
}

// make makes the call on g and checks its results.
func (c busyCall) make(ctx context.Context, g group.Group) error {
	var got, want [][]byte
	var err error
	switch c.op {
	case group.OpAllGather:
		got, err = g.AllGather(ctx, c.value(g.Rank()))
		want = c.values(g.Size())
	case group.OpGather:
		got, err = g.Gather(ctx, c.root, c.value(g.Rank()))
		if g.Rank() == c.root {
			want = c.values(g.Size())
		}
	case group.OpScatter:
		got = make([][]byte, 1)
		got[0], err = g.Scatter(ctx, c.root, c.values(g.Size()))
		want = [][]byte{c.value(g.Rank())}
	case group.OpBroadcast:
		got = make([][]byte, 1)
		got[0], err = g.Broadcast(ctx, c.root, c.value(c.root))
		want = [][]byte{c.value(c.root)}
	}
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s = %d values; want %d", c.op, len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			return fmt.Errorf("%s: value %d has %d bytes; want %d", c.op, i, len(got[i]), len(want[i]))
		}
	}
	return nil
}

// run makes all calls. Ranks that wait for each other for ever wait until the clock of the
// bubble, which then jumps ahead, ends the context.
func (o overlap) run(t *testing.T) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	nodes := new(tree.Memory).Nodes(o.size, tree.Options{Arity: o.arity})
	errs := make([]error, o.size)
	var wg sync.WaitGroup
	for r, n := range nodes {
		wg.Go(func() { errs[r] = o.rank(ctx, n.World()) })
	}
	wg.Wait()
	closeAll(nodes)
	return errors.Join(errs...)
}

// rank makes one rank's calls, on different groups at once.
func (o overlap) rank(ctx context.Context, world group.Group) error {
	gs := make([]group.Group, len(o.groups))
	for i, b := range o.groups {
		gs[i] = world
		if b.ranks == nil {
			continue
		}
		var err error
		if gs[i], err = world.Sub(ctx, b.ranks); err != nil {
			return err
		}
	}
	errs := make([]error, len(gs))
	var wg sync.WaitGroup
	for i, g := range gs {
		if g == nil {
			continue
		}
		wg.Go(func() {
			for k, c := range o.groups[i].calls {
				if err := c.make(ctx, g); err != nil {
					errs[i] = fmt.Errorf("rank %d, group %d, call %d: %w", world.Rank(), i, k, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Groups over the same ranks do not stop each other, even if their trees together form a
// circle.
func TestGroupsThatPassValuesInACircle(t *testing.T) {
	for name, o := range map[string]overlap{
		"arity 1, 3 ranks": {3, 1, []busyGroup{{}, {ranks: []int{1, 2, 0}}, {ranks: []int{2, 0, 1}}}},
		"arity 2, 7 ranks": {7, 2, []busyGroup{{}, {ranks: []int{1, 2, 0, 4, 3, 5, 6}}, {ranks: []int{2, 0, 1, 4, 3, 5, 6}}}},
		"arity 8, 10 ranks": {10, 8, []busyGroup{
			{}, {ranks: []int{1, 2, 0, 3, 4, 5, 6, 7, 8, 9}}, {ranks: []int{2, 0, 1, 3, 4, 5, 6, 7, 8, 9}},
		}},
	} {
		for i := range o.groups {
			o.groups[i].calls = []busyCall{{op: group.OpAllGather, bytes: fills}}
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := o.run(t); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Whatever groups ranks are in and in whatever order, calls on all of them at
// once come to an end.
func TestGroupsDoNotWaitForEachOther(t *testing.T) {
	first := deep.Seed(t)
	for i := range deep.Rounds(2, 40) {
		seed := first + uint64(i)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			o := randomOverlap(rand.New(rand.NewPCG(seed, 0)))
			synctest.Test(t, func(t *testing.T) {
				if err := o.run(t); err != nil {
					t.Errorf("%+v: %v", o, err)
				}
			})
		})
	}
}

// randomOverlap has groups of most of the ranks, and calls most of which bring
// more than links have room for.
func randomOverlap(rnd *rand.Rand) overlap {
	ops := []group.Op{group.OpAllGather, group.OpAllGather, group.OpAllGather, group.OpGather, group.OpScatter, group.OpBroadcast}
	sizes := []int{fills, fills, fills / 2, 1000}
	o := overlap{size: 3 + rnd.IntN(4), arity: 1 + rnd.IntN(2)}
	for range 4 + rnd.IntN(3) {
		b := busyGroup{ranks: rnd.Perm(o.size)[:o.size-rnd.IntN(2)]}
		for range 1 + rnd.IntN(2) {
			b.calls = append(b.calls, busyCall{
				op: ops[rnd.IntN(len(ops))], root: rnd.IntN(len(b.ranks)), bytes: sizes[rnd.IntN(len(sizes))],
			})
		}
		o.groups = append(o.groups, b)
	}
	return o
}
