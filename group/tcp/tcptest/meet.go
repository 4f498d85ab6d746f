// Package tcptest helps tests of ranks that are connected by TCP: it lets ranks meet, starts
// them as processes, and drops their frames. It does not depend on the tested packages. The
// contract is in package tcp.
package tcptest

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group/tcp"
)

// Secret is the secret of the ranks of tests.
const Secret = "of the tests"

// limit is when ranks that have not met will not.
const limit = 5 * time.Minute

// ByFile returns the configurations of n ranks that meet by a file of the test.
func ByFile(t testing.TB, n int) func(rank int) tcp.Config {
	path := filepath.Join(t.TempDir(), "meet")
	return func(rank int) tcp.Config {
		return tcp.Config{Rendezvous: "file://" + path, Rank: rank, Size: n, Job: t.Name(), Secret: []byte(Secret)}
	}
}

// Meet makes a group of n processes with those configurations, which may leave
// the ranks open, and returns its ends by rank. It is closed at the end of the
// test.
func Meet(t testing.TB, n int, cfg func(i int) tcp.Config) []*tcp.Group {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()

	gs, errs := Join(ctx, n, cfg)
	t.Cleanup(func() { Close(gs) })
	for i, err := range errs {
		if err != nil {
			t.Fatalf("Join of process %d of %d = %v", i, n, err)
		}
	}

	slices.SortFunc(gs, func(a, b *tcp.Group) int { return a.Rank() - b.Rank() })
	for r, g := range gs {
		if g.Rank() != r || g.Size() != n {
			t.Fatalf("a process is rank %d of %d; want %d of %d", g.Rank(), g.Size(), r, n)
		}
	}

	return gs
}

// Join lets n processes join at once and returns the results of each.
func Join(ctx context.Context, n int, cfg func(i int) tcp.Config) ([]*tcp.Group, []error) {
	gs, errs := make([]*tcp.Group, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { gs[i], errs[i] = tcp.Join(ctx, cfg(i)) })
	}
	wg.Wait()
	return gs, errs
}

// Close closes the groups that are not nil, at once.
func Close(gs []*tcp.Group) {
	var wg sync.WaitGroup
	for _, g := range gs {
		if g != nil {
			wg.Go(func() { g.Close() })
		}
	}
	wg.Wait()
}
