package jobtest

import (
	"context"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// OnRanks runs fn on n ranks.
func OnRanks(t testing.TB, n int, fn func(ctx context.Context, g group.Group) error) {
	t.Helper()
	must.Do(t, inproc.Run(t.Context(), n, fn))
}

// EachRank runs fn on every rank of a job of goroutines.
func EachRank(t *testing.T, ranks int, fn func(ctx context.Context, g group.Group) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, g := range inproc.New(ranks) {
		wg.Go(func() {
			if err := fn(t.Context(), g); err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
				g.Leave(err)
			}
		})
	}
	wg.Wait()
}
