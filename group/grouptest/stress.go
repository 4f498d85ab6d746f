package grouptest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

func (s *suite) stress(t *testing.T) {
	s.test(t, "1000 rounds of all calls", func(e *env) {
		cs := s.collectives()
		e.must("stress", func(ctx context.Context, g group.Group) error {
			for i := range 1000 {
				c := cs[i%len(cs)]
				if err := c.call(ctx, g); err != nil {
					return fmt.Errorf("round %d, %s: %w", i, c.name, err)
				}
			}
			return nil
		})
	})
	s.test(t, "contexts that end while calls complete", s.racing)
}

// racing cancels a rank at about the time the call completes: which comes first
// is open, but all ranks must see the same, round after round, without meeting
// in between.
func (s *suite) racing(e *env) {
	const rounds = 200
	seed := rand.Uint64()
	e.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	ctxs := make([]context.Context, rounds)
	cancels := make([]context.CancelFunc, rounds)
	victims := make([]int, rounds)
	for i := range rounds {
		ctxs[i], cancels[i] = context.WithCancel(e.context())
		victims[i] = rng.IntN(s.n)
	}
	got := make([][]error, rounds)
	for i := range got {
		got[i] = make([]error, s.n)
	}
	cs := s.collectives()
	var killer sync.WaitGroup
	e.must("racing", func(ctx context.Context, g group.Group) error {
		for i := range rounds {
			c := ctx
			if g.Rank() == victims[i] {
				c = ctxs[i]
				killer.Go(cancels[i])
			}
			got[i][g.Rank()] = cs[i%len(cs)].call(c, g)
		}
		return nil
	})
	killer.Wait()
	for i, errs := range got {
		if errs[0] != nil {
			e.blames(errs, []int{victims[i]}, context.Canceled)
			continue
		}
		for r, err := range errs {
			if err != nil {
				e.Fatalf("round %d: rank %d got %v, rank 0 nothing; want one outcome", i, r, err)
			}
		}
	}
	e.usable()
}
