package platformtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

// upTo returns the numbers from 0 to before n.
func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// checkGroup checks that g is a group of the ranks and that this process has its
// place there.
func checkGroup(g platform.Group, ranks []int, me int) error {
	if got := g.Ranks(); !slices.Equal(got, ranks) || g.Size() != len(ranks) {
		return fmt.Errorf("ranks = %v of %d; want %v", got, g.Size(), ranks)
	}
	if g.Backend() == "" {
		return errors.New("the backend has no name")
	}
	for i, r := range ranks {
		global, err := g.GlobalRank(i)
		local, err2 := g.LocalRank(r)
		if err != nil || err2 != nil || global != r || local != i {
			return fmt.Errorf("GlobalRank(%d) = %d, %v; LocalRank(%d) = %d, %v", i, global, err, r, local, err2)
		}
	}
	for _, bad := range []int{-1, len(ranks)} {
		if r, err := g.GlobalRank(bad); !errors.Is(err, group.ErrInvalid) {
			return fmt.Errorf("GlobalRank(%d) = %d, %v; want ErrInvalid", bad, r, err)
		}
	}
	if r, err := g.LocalRank(1 << 30); !errors.Is(err, group.ErrInvalid) {
		return fmt.Errorf("LocalRank of no member = %d, %v; want ErrInvalid", r, err)
	}
	return equal("own rank", g.Rank(), slices.Index(ranks, me))
}

func testWorld(e *env) {
	for r, p := range e.ps {
		if err := checkGroup(p.World(), upTo(e.size()), r); err != nil {
			e.Errorf("world of rank %d: %v", r, err)
		}
		if p.Name() == "" || p.Name() != e.ps[0].Name() {
			e.Errorf("name of rank %d = %q; want that of rank 0, %q", r, p.Name(), e.ps[0].Name())
		}
		if g, ok := p.Lookup(upTo(e.size())); !ok || g != p.World() {
			e.Errorf("Lookup of all ranks on rank %d = %v, %v; want the world", r, g, ok)
		}
	}
}

// A group's ranks ascend whatever the list's order, and a rank that is not listed has
// none.
func testNew(e *env) {
	ranks := upTo(e.size())[e.size()/2:]
	e.must(func(ctx context.Context, p platform.Platform) error {
		listed := slices.Clone(ranks)
		slices.Reverse(listed)
		g, err := p.New(ctx, listed)
		if err != nil {
			return err
		}
		me := p.World().Rank()
		if !slices.Contains(ranks, me) {
			return equal("group of a rank that is not listed", g, nil)
		}
		return checkGroup(g, ranks, me)
	})
}

// A group that all members remember is found again, one that some have closed is
// made anew.
func testNewAgain(e *env) {
	ranks := upTo(e.size() - e.size()/2)
	e.must(func(ctx context.Context, p platform.Platform) error {
		g, err := p.New(ctx, ranks)
		if err != nil {
			return err
		}
		again, err := p.Split(ctx, p.World(), [][]int{ranks})
		if err != nil || again != g {
			return fmt.Errorf("the second time: %v, %v; want the same group", again, err)
		}
		known, ok := p.Lookup(ranks)
		if ok != (g != nil) || known != g {
			return fmt.Errorf("call of Lookup = %v, %v; want %v", known, ok, g)
		}
		if e.size() == 1 {
			return nil // it is the world
		}
		if g != nil && g.Rank() == 0 {
			if err := p.Close(ctx, g); err != nil {
				return err
			}
		}
		fresh, err := p.New(ctx, ranks)
		if err != nil || g != nil && fresh == g {
			return fmt.Errorf("after Close on one rank: %v, %v; want another group", fresh, err)
		}
		if fresh == nil {
			return nil
		}
		return p.Barrier(ctx, fresh)
	})
}

func testSplit(e *env) {
	half := (e.size() + 1) / 2
	for _, pattern := range [][]int{{0}, upTo(e.size()), upTo(half), {0, half}} {
		parts, err := platform.Partition(pattern, e.size())
		if err != nil {
			continue // not a pattern of that many ranks
		}
		e.must(func(ctx context.Context, p platform.Platform) error {
			g, err := p.Split(ctx, p.World(), parts)
			if err != nil {
				return err
			}
			me := p.World().Rank()
			mine := parts[slices.IndexFunc(parts, func(part []int) bool { return slices.Contains(part, me) })]
			if err := checkGroup(g, mine, me); err != nil {
				return err
			}
			// A part is split again, by global ranks.
			first, err := p.Split(ctx, g, [][]int{mine[:1]})
			if err != nil || (first == nil) != (me != mine[0]) {
				return fmt.Errorf("split of a part = %v, %v", first, err)
			}
			return nil
		})
	}
}

func testSplitDiffers(e *env) {
	if e.size() < 2 {
		return // no other rank
	}
	last := e.size() - 1
	e.fails("lists that differ", group.ErrDisagree, func(ctx context.Context, p platform.Platform) error {
		ranks := []int{0}
		if p.World().Rank() == last {
			ranks = []int{last}
		}
		_, err := p.New(ctx, ranks)
		return err
	})
	e.must(func(ctx context.Context, p platform.Platform) error { return p.Barrier(ctx, p.World()) })
}

func testBadLists(e *env) {
	n := e.size()
	for what, parts := range map[string][][]int{
		"no parts":             {},
		"no ranks":             {{}},
		"a part without ranks": {{0}, {}},
		"a rank out of range":  {{0, n}},
		"a negative rank":      {{-1}},
		"a rank twice":         {{0, 0}},
		"a rank in two parts":  {{0}, {0}},
	} {
		e.fails(what, group.ErrInvalid, func(ctx context.Context, p platform.Platform) error {
			g, err := p.Split(ctx, p.World(), parts)
			if g != nil {
				return fmt.Errorf("a group: %v", g)
			}
			return err
		})
	}
	for r, p := range e.ps {
		if g, ok := p.Lookup([]int{n}); ok || g != nil {
			e.Errorf("Lookup of what is not there on rank %d = %v, %v", r, g, ok)
		}
	}
}

func testAdopt(e *env) {
	e.must(func(ctx context.Context, p platform.Platform) error {
		mine := []int{p.World().Rank()}
		parts := make([][]int, e.size())
		for r := range parts {
			parts[r] = []int{r}
		}
		g, err := p.Split(ctx, p.World(), parts)
		if err != nil {
			return err
		}
		if err := p.Adopt(g, p.World()); err != nil {
			return err
		}
		if known, ok := p.Lookup(mine); !ok || known != g {
			return fmt.Errorf("call of Lookup of an adopted group = %v, %v", known, ok)
		}
		if err := p.Adopt(stranger{g}); !errors.Is(err, group.ErrInvalid) {
			return fmt.Errorf("call of Adopt of a group that is not the platform's = %v; want ErrInvalid", err)
		}
		return nil
	})
}

// stranger is a group that no platform knows.
type stranger struct{ platform.Group }

// Nil is not the group of all ranks.
func testNoGroup(e *env) {
	e.must(func(ctx context.Context, p platform.Platform) error {
		var none platform.Group
		_, gatherErr := p.AllGather(ctx, none, nil)
		_, splitErr := p.Split(ctx, none, [][]int{{0}})
		all := map[string]error{
			"barrier": p.Barrier(ctx, none), "all-gather": gatherErr, "split": splitErr,
			"adopt": p.Adopt(none), "close": p.Close(ctx, none), "a stranger": p.Barrier(ctx, stranger{p.World()}),
		}
		maps.Copy(all, typedOfNone(ctx, p))
		for what, err := range all {
			if !errors.Is(err, group.ErrInvalid) {
				return fmt.Errorf("%s of no group = %v; want ErrInvalid", what, err)
			}
		}
		return nil
	})
}

// typedOfNone returns what the functions for values make of no group.
func typedOfNone(ctx context.Context, p platform.Platform) map[string]error {
	c := group.JSON[int]()
	_, allGather := platform.AllGather(ctx, p, nil, c, 1)
	_, gather := platform.Gather(ctx, p, nil, 0, c, 1)
	_, scatter := platform.Scatter(ctx, p, nil, 0, c, []int{1})
	_, broadcast := platform.Broadcast(ctx, p, nil, 0, c, 1)
	_, recv := platform.Recv(ctx, p, nil, 0, 0, c)
	return map[string]error{
		"all-gather of values": allGather, "gather of values": gather, "scatter of values": scatter,
		"broadcast of a value": broadcast, "send of a value": platform.Send(ctx, p, nil, 0, 0, c, 1), "recv of a value": recv,
	}
}

func testCloseGroup(e *env) {
	if e.size() < 3 {
		return // a rank and two others
	}
	e.must(func(ctx context.Context, p platform.Platform) error {
		g, err := p.New(ctx, []int{0, 1})
		if err != nil || g == nil {
			return err
		}
		if err := p.Barrier(ctx, g); err != nil {
			return err
		}
		if g.Rank() == 0 {
			if err := errors.Join(p.Close(ctx, g), p.Close(ctx, g)); err != nil {
				return fmt.Errorf("close, twice: %w", err)
			}
			if _, ok := p.Lookup([]int{0, 1}); ok {
				return errors.New("a closed group is remembered")
			}
		}
		if err := p.Barrier(ctx, g); !errors.Is(err, group.ErrGone) {
			return fmt.Errorf("barrier after one has closed the group = %v; want ErrGone", err)
		}
		return nil
	})
	e.must(func(ctx context.Context, p platform.Platform) error { return p.Barrier(ctx, p.World()) })
}

func testCloseWorld(e *env) {
	e.must(func(ctx context.Context, p platform.Platform) error {
		world := p.World()
		if err := errors.Join(p.Barrier(ctx, world), p.Close(ctx, world), p.Close(ctx, world)); err != nil {
			return err
		}
		if _, ok := p.Lookup(world.Ranks()); ok {
			return errors.New("the closed world is remembered")
		}
		if err := p.Barrier(ctx, world); !errors.Is(err, group.ErrGone) {
			return fmt.Errorf("barrier after the world was closed = %v; want ErrGone", err)
		}
		return nil
	})
}
