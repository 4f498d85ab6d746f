package bench

import (
	"context"
	"crypto/rand"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/group/tcp"
)

// GroupLatency is how long a collective call takes.
type GroupLatency struct {
	// Op is barrier, or gather of 1 KiB from each rank.
	Op    string `json:"op"`
	Ranks int    `json:"ranks"`
	// As says what the ranks are: goroutines or processes.
	As     string  `json:"as"`
	Median float64 `json:"median_us"`
	P99    float64 `json:"p99_us"`
}

// smallValue is what a rank brings to a gather whose latency is measured.
const smallValue = 1 << 10

// latency takes the figures on rank 0, of calls that follow one another.
func latency(ctx context.Context, g *tcp.Group, calls int, as string) ([]GroupLatency, error) {
	value := make([]byte, smallValue)
	var out []GroupLatency
	for _, c := range []struct {
		op  string
		run func() error
	}{
		{"barrier", func() error { return g.Barrier(ctx) }},
		{"gather", func() error { _, err := g.Gather(ctx, 0, value); return err }},
	} {
		took := make([]time.Duration, 0, calls)
		for i := range calls + calls/10 {
			t, err := timed(c.run)
			if err != nil {
				return nil, err
			}
			if i >= calls/10 { // the first ones warm up
				took = append(took, t)
			}
		}
		out = append(out, GroupLatency{c.op, g.Size(), as, microseconds(took, 0.5), microseconds(took, 0.99)})
	}
	return out, nil
}

// microseconds returns a quantile of times.
func microseconds(took []time.Duration, q float64) float64 {
	return float64(quantile(took, q)) / float64(time.Microsecond)
}

// quantile returns the value of which a part q is not above.
func quantile(took []time.Duration, q float64) time.Duration {
	took = slices.Sorted(slices.Values(took))
	return took[max(0, int(math.Ceil(q*float64(len(took))))-1)]
}

func median(took []time.Duration) time.Duration { return quantile(took, 0.5) }

// latencyOfRoutines is latency for ranks of this process.
func latencyOfRoutines(ctx context.Context, n, calls int) ([]GroupLatency, error) {
	var figures []GroupLatency
	err := onRoutines(ctx, n, func(ctx context.Context, g *tcp.Group) error {
		l, err := latency(ctx, g, calls, "goroutines")
		if g.Rank() == 0 {
			figures = l
		}
		return err
	})
	return figures, err
}

// onRoutines runs fn on n ranks of this process that are connected by TCP.
func onRoutines(ctx context.Context, n int, fn func(context.Context, *tcp.Group) error) error {
	dir, err := os.MkdirTemp("", "cairn-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	secret := []byte(rand.Text())
	groups := make([]*tcp.Group, n)
	defer func() {
		var wg sync.WaitGroup
		for _, g := range groups {
			if g != nil {
				wg.Go(func() { g.Close() })
			}
		}
		wg.Wait()
	}()
	all, joining := errgroup.WithContext(ctx)
	for r := range n {
		all.Go(func() (err error) {
			groups[r], err = tcp.Join(joining, tcp.Config{
				Meet: &tcp.File{Path: filepath.Join(dir, "meet")}, Rank: r, Size: n, Secret: secret,
			})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	all, ctx = errgroup.WithContext(ctx)
	for _, g := range groups {
		all.Go(func() error { return fn(ctx, g) })
	}
	return all.Wait()
}
