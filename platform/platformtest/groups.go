package platformtest

import (
	"errors"
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

// checkGroup checks that g is the group of the ranks, as seen by the rank me.
func checkGroup(g platform.Group, ranks []int, me int) error {
	err := errors.Join(
		check(slices.Equal(g.Ranks(), ranks) && g.Size() == len(ranks), "ranks = %v of %d; want %v", g.Ranks(), g.Size(), ranks),
		check(g.Backend() != "", "the backend has no name"),
		check(g.Rank() == slices.Index(ranks, me), "own rank = %d; want %d", g.Rank(), slices.Index(ranks, me)))
	for i, r := range ranks {
		global, err1 := g.GlobalRank(i)
		local, err2 := g.LocalRank(r)
		ok := err1 == nil && err2 == nil && global == r && local == i
		err = errors.Join(err, check(ok, "GlobalRank(%d) = %d, %v; LocalRank(%d) = %d, %v", i, global, err1, r, local, err2))
	}
	for _, bad := range []int{-1, len(ranks)} {
		_, bounds := g.GlobalRank(bad)
		err = errors.Join(err, wraps("GlobalRank of no member", bounds, group.ErrInvalid))
	}
	_, bounds := g.LocalRank(1 << 30)
	return errors.Join(err, wraps("LocalRank of no member", bounds, group.ErrInvalid))
}

func testWorld(e *env) {
	e.must(func(r rank) error {
		g, ok := r.Lookup(upTo(e.size()))
		return errors.Join(
			checkGroup(r.world, upTo(e.size()), r.me),
			check(r.Name() != "" && r.Name() == e.ps[0].Name(), "name = %q, on rank 0 %q", r.Name(), e.ps[0].Name()),
			check(ok && g == r.world, "Lookup of all ranks = %v, %v; want the world", g, ok))
	})
}

// The ranks of a group are in the order of the list, and a rank that is not listed gets
// nil. The same ranks in another order are another group.
func testNew(e *env) {
	ranks := upTo(e.size())[e.size()/2:]
	listed := slices.Clone(ranks)
	slices.Reverse(listed)
	e.must(func(r rank) error {
		down, err := r.New(r, listed)
		if err != nil {
			return err
		}
		up, err := r.New(r, ranks)
		if err != nil || !slices.Contains(ranks, r.me) {
			return errors.Join(err, check(down == nil && up == nil, "groups of a rank that is not listed = %v, %v", down, up))
		}
		known, ok := r.Lookup(listed)
		sorted, sortedOK := platform.LookupSorted(r, listed)
		values, err := r.AllGather(r, down, []byte{byte(r.me)})
		for i, v := range values {
			err = errors.Join(err, check(len(v) == 1 && int(v[0]) == listed[i], "value %d of the group %v = %v", i, listed, v))
		}
		return errors.Join(err, checkGroup(down, listed, r.me), checkGroup(up, ranks, r.me),
			check(ok && known == down, "Lookup(%v) = %v, %v; want %v", listed, known, ok, down),
			check(sortedOK && sorted == up, "LookupSorted(%v) = %v, %v; want %v", listed, sorted, sortedOK, up))
	})
}

// The lists of all ranks must have one order.
func testOrderDiffers(e *env) {
	if e.size() < 2 {
		return
	}
	e.fails("lists in different orders", group.ErrDisagree, func(r rank) error {
		list := []int{0, 1}
		if r.me == 1 {
			list = []int{1, 0}
		}
		_, err := r.New(r, list)
		return err
	})
}

// A group that all members remember is returned again. After some have closed it, a
// new one is made.
func testNewAgain(e *env) {
	ranks := upTo(e.size() - e.size()/2)
	e.must(func(r rank) error {
		g, err := r.New(r, ranks)
		if err != nil {
			return err
		}
		again, err := r.Split(r, r.world, [][]int{ranks})
		known, ok := r.Lookup(ranks)
		err = errors.Join(err,
			check(again == g, "the second time: %v; want the same group", again),
			check(ok == (g != nil) && known == g, "Lookup = %v, %v; want %v", known, ok, g))
		if err != nil || e.size() == 1 { // of one rank, it is the world
			return err
		}
		if g != nil && g.Rank() == 0 {
			err = r.Close(r, g)
		}
		fresh, err2 := r.New(r, ranks)
		err = errors.Join(err, err2, check(g == nil || fresh != g, "after Close on one rank: %v; want another group", fresh))
		if fresh == nil || err != nil {
			return err
		}
		return r.Barrier(r, fresh)
	})
}

func testSplit(e *env) {
	half := (e.size() + 1) / 2
	for _, pattern := range [][]int{{0}, upTo(e.size()), upTo(half), {0, half}} {
		parts, err := platform.Partition(pattern, e.size())
		if err != nil {
			continue // the pattern does not fit the number of ranks
		}
		e.must(func(r rank) error {
			g, err := r.Split(r, r.world, parts)
			if err != nil {
				return err
			}
			mine := parts[slices.IndexFunc(parts, func(part []int) bool { return slices.Contains(part, r.me) })]
			first, err := r.Split(r, g, [][]int{mine[:1]}) // again, by global ranks
			return errors.Join(err, checkGroup(g, mine, r.me),
				check((first == nil) == (r.me != mine[0]), "split of a part = %v", first))
		})
	}
}

func testSplitDiffers(e *env) {
	if e.size() < 2 {
		return
	}
	e.fails("different lists", group.ErrDisagree, func(r rank) error {
		_, err := r.New(r, []int{min(r.me, 1)})
		return err
	})
	e.must(func(r rank) error { return r.Barrier(r, r.world) })
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
		e.fails(what, group.ErrInvalid, func(r rank) error {
			g, err := r.Split(r, r.world, parts)
			if g != nil {
				return check(false, "a group: %v", g)
			}
			return err
		})
	}
	e.must(func(r rank) error {
		g, ok := r.Lookup([]int{n})
		return check(!ok && g == nil, "Lookup of an unknown group = %v, %v", g, ok)
	})
}

func testAdopt(e *env) {
	e.must(func(r rank) error {
		var parts [][]int
		for i := range e.size() {
			parts = append(parts, []int{i})
		}
		g, err := r.Split(r, r.world, parts)
		if err != nil {
			return err
		}
		err = r.Adopt(g, r.world)
		known, ok := r.Lookup([]int{r.me})
		return errors.Join(err,
			check(ok && known == g, "Lookup of an adopted group = %v, %v", known, ok),
			wraps("Adopt of a foreign group", r.Adopt(stranger{g}), group.ErrInvalid))
	})
}

// stranger is a group that no platform has made.
type stranger struct{ platform.Group }

// A nil group does not mean the group of all ranks.
func testNoGroup(e *env) {
	e.must(func(r rank) error {
		c := group.JSON[int]()
		_, gather := r.AllGather(r, nil, nil)
		_, split := r.Split(r, nil, [][]int{{0}})
		_, valueAllGather := platform.AllGather(r, r, nil, c, 1)
		_, valueGather := platform.Gather(r, r, nil, 0, c, 1)
		_, valueScatter := platform.Scatter(r, r, nil, 0, c, []int{1})
		_, valueBroadcast := platform.Broadcast(r, r, nil, 0, c, 1)
		_, valueRecv := platform.Recv(r, r, nil, 0, 0, c)
		var errs []error
		for what, err := range map[string]error{
			"barrier": r.Barrier(r, nil), "all-gather": gather, "split": split, "adopt": r.Adopt(nil), "close": r.Close(r, nil),
			"barrier of a foreign group": r.Barrier(r, stranger{r.world}),
			"all-gather of values":       valueAllGather, "gather of values": valueGather, "scatter of values": valueScatter,
			"broadcast of a value": valueBroadcast, "recv of a value": valueRecv,
			"send of a value": platform.Send(r, r, nil, 0, 0, c, 1),
		} {
			errs = append(errs, wraps(what, err, group.ErrInvalid))
		}
		return errors.Join(errs...)
	})
}

func testCloseGroup(e *env) {
	if e.size() < 3 {
		return // no rank outside the group
	}
	e.must(func(r rank) error {
		g, err := r.New(r, []int{0, 1})
		if err != nil || g == nil {
			return err
		}
		if err := r.Barrier(r, g); err != nil {
			return err
		}
		if g.Rank() == 0 {
			err = errors.Join(r.Close(r, g), r.Close(r, g))
			_, ok := r.Lookup([]int{0, 1})
			err = errors.Join(err, check(!ok, "a closed group is remembered"))
		}
		return errors.Join(err, wraps("barrier after rank 0 has closed the group", r.Barrier(r, g), group.ErrGone))
	})
	e.must(func(r rank) error { return r.Barrier(r, r.world) })
}

func testCloseWorld(e *env) {
	e.must(func(r rank) error {
		err := errors.Join(r.Barrier(r, r.world), r.Close(r, r.world), r.Close(r, r.world))
		_, ok := r.Lookup(r.world.Ranks())
		return errors.Join(err, check(!ok, "the closed world is remembered"),
			wraps("barrier after the world was closed", r.Barrier(r, r.world), group.ErrGone))
	})
}
