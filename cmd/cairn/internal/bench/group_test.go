package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGroupBench(t *testing.T) {
	r, err := Group(t.Context(), GroupOptions{
		Ranks: []int{2, 9}, LatencyProcs: []int{2}, Calls: 20, GatherRanks: 10, GatherBytes: 100_000,
		Procs: []int{2, 3}, Bytes: 1<<20 + 4, Repeat: 2, Self: self,
	})
	if err != nil {
		t.Fatal(err)
	}
	type kind struct {
		Op string
		As string
		N  int
	}
	var got []kind
	for _, l := range r.Latency {
		if l.Median <= 0 || l.P99 < l.Median {
			t.Errorf("latency %+v; want a median and a p99 above it", l)
		}
		got = append(got, kind{l.Op, l.As, l.Ranks})
	}
	for _, c := range r.Collectives {
		if c.Rate <= 0 || c.Wire < 0.99*c.Rate || c.Floor <= 0 || c.Ratio <= 0 || c.CachedRatio <= 0 || c.Bytes != 1<<20+4 {
			t.Errorf("collective %+v; want figures of %d bytes", c, 1<<20+4)
		}
		got = append(got, kind{c.Op, "", c.Processes})
	}
	want := []kind{
		{"barrier", "goroutines", 2}, {"gather", "goroutines", 2}, {"barrier", "goroutines", 9}, {"gather", "goroutines", 9},
		{"barrier", "processes", 2}, {"gather", "processes", 2},
		{"all_reduce", "", 2}, {"broadcast", "", 2}, {"all_reduce", "", 3}, {"broadcast", "", 3},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("figures (-want +got):\n%s", d)
	}
	g := r.Gather
	if g == nil || g.Seconds <= 0 || g.Rate <= 0 || g.Floor <= 0 || g.Ratio <= 0 {
		t.Fatalf("gather = %+v; want figures", g)
	}
	if hops := (8*1 + 1*2) / 9.0; g.Hops < hops-1e-9 || g.Hops > hops+1e-9 {
		t.Errorf("a byte crosses %v connections; want %v", g.Hops, hops)
	}
}

func TestGroupBenchReportsRankError(t *testing.T) {
	o := GroupOptions{Ranks: []int{2}, LatencyProcs: []int{2}, Calls: 1, GatherRanks: 2, Bytes: 1, Repeat: 1}
	if _, err := Group(t.Context(), o); err == nil {
		t.Error("Group that cannot start processes = nil; want an error")
	}
	o.Self = append(self[:2:2], "no job")
	if _, err := Group(t.Context(), o); err == nil || !strings.Contains(err.Error(), "job of a process") {
		t.Errorf("Group whose processes fail = %v; want the output of one of them", err)
	}
	o.Ranks, o.LatencyProcs, o.GatherRanks = []int{2}, []int{}, 1
	if _, err := Group(t.Context(), o); err == nil {
		t.Error("Group that gathers from one rank = nil; want an error")
	}
}

func TestQuantile(t *testing.T) {
	took := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, 0.2: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(took, q); got != want {
			t.Errorf("quantile(%v, %v) = %v; want %v", took, q, got, want)
		}
	}
}

func TestMeanHops(t *testing.T) {
	for n, want := range map[int]float64{2: 1, 9: 1, 10: 10.0 / 9, 73: (8 + 2*64) / 72.0} {
		if got := meanHops(n); got != want {
			t.Errorf("meanHops(%d) = %v; want %v", n, got, want)
		}
	}
}
