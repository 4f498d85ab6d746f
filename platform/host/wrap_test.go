package host_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
)

// sub makes a group beside the platforms, and returns the end of each rank.
func sub(t *testing.T, ps []platform.Platform, ranks ...int) []group.Group {
	t.Helper()
	out, errs := make([]group.Group, len(ps)), make([]error, len(ps))
	var wg sync.WaitGroup
	for r, p := range ps {
		wg.Go(func() { out[r], errs[r] = p.World().(*host.Group).Unwrap().Sub(t.Context(), ranks) })
	}
	wg.Wait()
	must.Do(t, errors.Join(errs...))
	return out
}

// adopt lets a rank's platform remember a group that was made beside it.
func adopt(p platform.Platform, g group.Group) (platform.Group, error) {
	own, err := p.(*host.Platform).Wrap(g)
	if err != nil {
		return nil, err
	}
	return own, p.Adopt(own)
}

func TestWrap(t *testing.T) {
	ps := part(t, 3)
	made := sub(t, ps, 0, 2)
	for i, r := range []int{0, 2} {
		g, err := adopt(ps[r], made[r])
		must.Do(t, err)
		if got, err := g.GlobalRank(1); got != 2 || g.Rank() != i || err != nil {
			t.Errorf("rank %d is %d, and the second of [0 2] %d, %v; want %d and 2", r, g.Rank(), got, err, i)
		}
		if known, ok := ps[r].Lookup([]int{0, 2}); !ok || known != g {
			t.Errorf("Lookup after Adopt on rank %d = %v, %v", r, known, ok)
		}
		if other, ok := ps[r].Lookup([]int{2, 0}); ok {
			t.Errorf("Lookup in another order on rank %d = %v; want no group", r, other)
		}
	}
	if err := ps[0].Adopt(ps[1].World()); !errors.Is(err, group.ErrInvalid) {
		t.Errorf("Adopt of another platform's group = %v; want ErrInvalid", err)
	}
}

// A group of descending ranks keeps its order.
func TestWrapKeepsTheOrder(t *testing.T) {
	ps := part(t, 3)
	made := sub(t, ps, 2, 0)
	for i, r := range []int{2, 0} {
		g, err := adopt(ps[r], made[r])
		must.Do(t, err)
		if got, err := g.GlobalRank(0); got != 2 || g.Rank() != i || err != nil {
			t.Errorf("rank %d is %d, and the first of [2 0] %d, %v; want %d and 2", r, g.Rank(), got, err, i)
		}
	}
}

func TestWrapRefuses(t *testing.T) {
	ps := part(t, 3)
	for what, g := range map[string]group.Group{
		"ranks that are not in the world": inproc.New(5)[0],
		"no group":                        sub(t, ps, 1, 2)[0],
	} {
		if got, err := ps[0].(*host.Platform).Wrap(g); !errors.Is(err, group.ErrInvalid) || got != nil {
			t.Errorf("Wrap of %s = %v, %v; want ErrInvalid", what, got, err)
		}
	}
}

// named is a group that has a name on all ranks.
type named struct {
	group.Group
	id [16]byte
}

func (n named) ID() [16]byte { return n.id }

// New finds an adopted group if all ranks can say that it is one and the same,
// and makes another if they cannot, or if it is not: whatever a rank gets
// is a group that all have.
func TestNewOfAdoptedGroups(t *testing.T) {
	one, other := func(int) int { return 0 }, func(rank int) int { return rank }
	for _, c := range []struct {
		name string
		pick func(rank int) int         // which of two groups a rank adopts
		id   func(rank, group int) byte // zero: none
		same bool
	}{
		{"the same one", one, func(_, g int) byte { return byte(g + 1) }, true},
		{"others", other, func(_, g int) byte { return byte(g + 1) }, false},
		{"without names", one, func(int, int) byte { return 0 }, false},
		{"others without names", other, func(int, int) byte { return 0 }, false},
		{"a name on one rank", one, func(r, _ int) byte { return byte(r) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ps := goroutines(t, 2)
				made := [][]group.Group{sub(t, ps, 0, 1), sub(t, ps, 0, 1)}
				each(t, ps, func(ctx context.Context, p platform.Platform) error {
					r := p.World().Rank()
					k := c.pick(r)
					return adoptThenNew(ctx, p, named{made[k][r], [16]byte{c.id(r, k)}}, c.same)
				})
			})
		})
	}
}

// adoptThenNew adopts g and checks whether New then finds it. If ranks hold
// different groups after that, the barrier takes for ever.
func adoptThenNew(ctx context.Context, p platform.Platform, g group.Group, found bool) error {
	own, err := adopt(p, g)
	if err != nil {
		return err
	}
	got, err := p.New(ctx, []int{0, 1})
	if err != nil || (got == own) != found {
		return fmt.Errorf("call of New = %v, %v; want the adopted group: %v", got, err, found)
	}
	return p.Barrier(ctx, got)
}

// Groups of processes have names, so an adopted one is found again.
func TestNewOfAdoptedGroupsOverTCP(t *testing.T) {
	ps := sockets(t, 2)
	made := [][]group.Group{sub(t, ps, 0, 1), sub(t, ps, 0, 1)}
	each(t, ps, func(ctx context.Context, p platform.Platform) error {
		r := p.World().Rank()
		if err := adoptThenNew(ctx, p, made[r][r], false); err != nil {
			return err
		}
		return adoptThenNew(ctx, p, made[1][r], true)
	})
}

// The world is found by the list of all ranks, in their order.
func TestNewOfTheWorld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		each(t, goroutines(t, 3), func(ctx context.Context, p platform.Platform) error {
			if g, err := p.New(ctx, []int{0, 1, 2}); err != nil || g != p.World() {
				return fmt.Errorf("call of New of all ranks = %v, %v; want the world", g, err)
			}
			if g, err := p.New(ctx, []int{2, 1, 0}); err != nil || g == p.World() || g.Rank() != 2-p.World().Rank() {
				return fmt.Errorf("call of New of all ranks from behind = %v, %v; want another group", g, err)
			}
			return nil
		})
	})
}

// each runs fn on all ranks.
func each(t *testing.T, ps []platform.Platform, fn func(ctx context.Context, p platform.Platform) error) {
	t.Helper()
	var wg sync.WaitGroup
	for r, p := range ps {
		wg.Go(func() {
			if err := fn(t.Context(), p); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
}
