package grouptest

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

// shapes are the kinds of values that ranks exchange; each gives the value that
// rank from has for rank to.
var shapes = []struct {
	name string
	make func(from, to int) []byte
}{
	{"short", short},
	{"nil", func(int, int) []byte { return nil }},
	{"empty", func(int, int) []byte { return []byte{} }},
	{"empty on odd ranks", func(from, to int) []byte {
		if (from+to)%2 == 1 {
			return nil
		}
		return short(from, to)
	}},
	{"large", func(from, to int) []byte {
		if from >= 8 { // many ranks with large values take long
			return bytes.Repeat(short(from, to), 25_000)
		}
		return bytes.Repeat(short(from, to), 100_000)
	}},
	{"of all lengths", func(from, to int) []byte { return bytes.Repeat([]byte{byte(to)}, 1<<from-1) }},
}

func short(from, to int) []byte { return fmt.Appendf(nil, "%d>%d", from, to) }

func (s *suite) values(t *testing.T) {
	s.test(t, "members are numbered in order", func(e *env) {
		for r, g := range e.gs {
			if g.Rank() != r || g.Size() != s.n || len(g.Ranks()) != s.n || g.Ranks()[r] != r {
				e.Errorf("rank %d has rank %d, size %d, ranks %v; want %d ranks in order", r, g.Rank(), g.Size(), g.Ranks(), s.n)
			}
		}
	})
	for _, shape := range shapes {
		s.test(t, shape.name, func(e *env) {
			e.must("all-gather", func(ctx context.Context, g group.Group) error { return allGather(ctx, g, shape.make) })
			for root := range s.n {
				e.must(fmt.Sprintf("root %d", root), func(ctx context.Context, g group.Group) error {
					return rooted(ctx, g, root, shape.make)
				})
			}
		})
	}
}

// rooted does and checks all calls that have a root.
func rooted(ctx context.Context, g group.Group, root int, value func(from, to int) []byte) error {
	if err := gather(ctx, g, root, value); err != nil {
		return err
	}
	if err := scatter(ctx, g, root, value); err != nil {
		return err
	}
	got, err := g.Broadcast(ctx, root, value(g.Rank(), 0))
	if err != nil {
		return err
	}
	return equal("broadcast", got, value(root, 0))
}

func gather(ctx context.Context, g group.Group, root int, value func(from, to int) []byte) error {
	got, err := g.Gather(ctx, root, value(g.Rank(), root))
	if err != nil {
		return err
	}
	if g.Rank() != root {
		if got != nil {
			return fmt.Errorf("gather = %d values on a rank that is not the root; want nil", len(got))
		}
		return nil
	}
	return equalAll("gather", got, g.Size(), func(r int) []byte { return value(r, root) })
}

func scatter(ctx context.Context, g group.Group, root int, value func(from, to int) []byte) error {
	var vs [][]byte
	if g.Rank() == root {
		for to := range g.Size() {
			vs = append(vs, value(root, to))
		}
	}
	got, err := g.Scatter(ctx, root, vs)
	if err != nil {
		return err
	}
	return equal("scatter", got, value(root, g.Rank()))
}

func allGather(ctx context.Context, g group.Group, value func(from, to int) []byte) error {
	got, err := g.AllGather(ctx, value(g.Rank(), 0))
	if err != nil {
		return err
	}
	return equalAll("all-gather", got, g.Size(), func(r int) []byte { return value(r, 0) })
}

func checkAllGather(ctx context.Context, g group.Group) error { return allGather(ctx, g, short) }

func equalAll(what string, got [][]byte, n int, want func(rank int) []byte) error {
	if len(got) != n {
		return fmt.Errorf("%s = %d values; want %d", what, len(got), n)
	}
	for r := range n {
		if err := equal(fmt.Sprintf("%s of rank %d", what, r), got[r], want(r)); err != nil {
			return err
		}
	}
	return nil
}

func equal(what string, got, want []byte) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s = %d bytes %.20q; want %d bytes %.20q", what, len(got), got, len(want), want)
	}
	return nil
}

func (s *suite) barrier(t *testing.T) {
	s.test(t, "nobody passes before all have come", func(e *env) {
		const rounds = 20
		var came [rounds]atomic.Int32
		e.must("barrier", func(ctx context.Context, g group.Group) error {
			for i := range rounds {
				came[i].Add(1)
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				if n := came[i].Load(); int(n) != g.Size() {
					return fmt.Errorf("round %d: passed when %d of %d had come", i, n, g.Size())
				}
			}
			return nil
		})
	})
}
