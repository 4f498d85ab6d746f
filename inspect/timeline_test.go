package inspect_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
)

func phase(name string, start, end int, bytes int64) meta.Phase {
	return meta.Phase{Name: name, Start: time.Duration(start) * time.Second, End: time.Duration(end) * time.Second, Bytes: bytes}
}

func newTimeline(t testing.TB, tl meta.Timeline) *inspect.Timeline {
	t.Helper()
	got := must.Get(inspect.NewTimeline(meta.Storage{SaveID: "id", Step: new(int64(7)), Timeline: tl}))(t)
	return got
}

func TestTimelineSumsPhases(t *testing.T) {
	got := newTimeline(t, meta.Timeline{
		{phase("write", 2, 4, 10), phase("plan", 0, 1, 0), phase("global-plan", 1, 2, 0), phase("commit", 8, 9, 0)},
		{phase("plan", 0, 2, 0), phase("write", 2, 8, 20)},
		{phase("plan", 0, 1, 0), phase("write", 2, 5, 30)},
		{},
	})
	want := &inspect.Timeline{
		SaveID: "id", Step: new(int64(7)), Seconds: 9, MedianBusy: 3,
		Phases: []inspect.PhaseTotals{
			{Name: "plan", Ranks: 3, Median: 1, Slowest: 2, SlowestRank: 1},
			{Name: "global-plan", Ranks: 1, Median: 1, Slowest: 1, SlowestRank: 0},
			{Name: "write", Ranks: 3, Median: 3, Slowest: 6, SlowestRank: 1, Bytes: 60},
			{Name: "commit", Ranks: 1, Median: 1, Slowest: 1, SlowestRank: 0},
		},
		Ranks: []inspect.RankTimeline{
			{Rank: 0, Busy: 3, Phases: []inspect.RankPhase{
				{Name: "plan", End: 1}, {Name: "global-plan", Start: 1, End: 2}, {Name: "write", Start: 2, End: 4, Bytes: 10},
				{Name: "commit", Start: 8, End: 9},
			}},
			{Rank: 1, Busy: 8, Slow: true, Phases: []inspect.RankPhase{{Name: "plan", End: 2}, {Name: "write", Start: 2, End: 8, Bytes: 20}}},
			{Rank: 2, Busy: 4, Slow: true, Phases: []inspect.RankPhase{{Name: "plan", End: 1}, {Name: "write", Start: 2, End: 5, Bytes: 30}}},
			{Rank: 3, Phases: []inspect.RankPhase{}},
		},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(inspect.RankPhase{})); d != "" {
		t.Errorf("NewTimeline (-want +got):\n%s", d)
	}
}

func TestMedianOfPhases(t *testing.T) {
	for _, tc := range []struct {
		seconds []int
		want    float64
	}{
		{[]int{3}, 3}, {[]int{4, 1}, 1}, {[]int{9, 1, 2}, 2}, {[]int{7, 1, 9, 2}, 2},
	} {
		tl := make(meta.Timeline, len(tc.seconds))
		for r, s := range tc.seconds {
			tl[r] = []meta.Phase{phase("write", 1, 1+s, 0)}
		}
		if got := newTimeline(t, tl); got.Phases[0].Median != tc.want || got.MedianBusy != tc.want {
			t.Errorf("the medians of %v seconds are %v and %v; want %v", tc.seconds, got.Phases[0].Median, got.MedianBusy, tc.want)
		}
	}
}

// A rank is slow only if that matters to the whole save.
func TestSlowRanks(t *testing.T) {
	ms := time.Millisecond
	rank := func(write time.Duration) []meta.Phase { return []meta.Phase{{Name: "write", End: write}} }
	for name, tc := range map[string]struct {
		tl   meta.Timeline
		want []int
	}{
		"one rank":               {meta.Timeline{rank(1000 * ms)}, nil},
		"equal ranks":            {meta.Timeline{rank(1000 * ms), rank(1001 * ms), rank(999 * ms)}, nil},
		"one that is slow":       {meta.Timeline{rank(1000 * ms), rank(1400 * ms), rank(999 * ms)}, []int{1}},
		"one of two":             {meta.Timeline{rank(1000 * ms), rank(1400 * ms)}, []int{1}},
		"one that is fast":       {meta.Timeline{rank(1000 * ms), rank(10 * ms), rank(999 * ms)}, nil},
		"little of a long save":  {meta.Timeline{rank(10 * ms), rank(40 * ms), append(rank(10*ms), meta.Phase{Name: "commit", End: time.Minute})}, nil},
		"no phase took any time": {meta.Timeline{rank(0), rank(0)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int
			for _, r := range newTimeline(t, tc.tl).Ranks {
				if r.Slow {
					got = append(got, r.Rank)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("slow ranks are %v; want %v", got, tc.want)
			}
		})
	}
}

func TestTypicalRanksAreTheSlowestAndThoseAroundTheMedian(t *testing.T) {
	tl := make(meta.Timeline, 100)
	for r := range tl {
		tl[r] = []meta.Phase{phase("write", 0, (r*37)%100, 0)}
	}
	var got []float64
	for _, r := range newTimeline(t, tl).Typical(8) {
		got = append(got, r.Busy)
	}
	if want := []float64{99, 98, 97, 96, 95, 94, 50, 49}; !slices.Equal(got, want) {
		t.Errorf("Typical(8) has the ranks that were busy for %v; want %v", got, want)
	}
}

func TestTypicalRanksAreDifferent(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		ranks, most := rapid.IntRange(1, 60).Draw(t, "ranks"), rapid.IntRange(1, 30).Draw(t, "most")
		tl := make(meta.Timeline, ranks)
		for r := range tl {
			tl[r] = []meta.Phase{phase("write", 0, rapid.IntRange(0, 3).Draw(t, "seconds"), 0)}
		}
		x := must.Get(inspect.NewTimeline(meta.Storage{Timeline: tl}))(t)
		seen := map[int]bool{}
		for _, r := range x.Typical(most) {
			seen[r.Rank] = true
		}
		if len(seen) != min(ranks, most) {
			t.Fatalf("Typical(%d) of %d ranks returns the ranks %v", most, ranks, seen)
		}
	})
}

// The events of one track do not overlap, as the trace event format demands.
func TestTraceEventsDoNotOverlap(t *testing.T) {
	tl := newTimeline(t, meta.Timeline{
		{phase("stage", 0, 5, 1), phase("plan", 0, 1, 0), phase("write", 2, 9, 1), phase("commit", 9, 10, 0)},
		{phase("plan", 0, 1, 0), phase("write", 2, 3, 1)},
	})
	var b bytes.Buffer
	must.Do(t, tl.WriteTrace(&b))
	var got struct {
		Events []struct {
			Name     string
			Ph       string
			TS, Dur  int64
			PID, TID int
		} `json:"traceEvents"`
	}
	must.Do(t, json.Unmarshal(b.Bytes(), &got))
	ends, count := map[[2]int]int64{}, 0
	for _, e := range got.Events {
		if e.Ph != "X" {
			continue
		}
		count++
		track := [2]int{e.PID, e.TID}
		if e.TS < ends[track] {
			t.Errorf("%s of rank %d begins at %d, before the event before it on the track ends", e.Name, e.PID, e.TS)
		}
		ends[track] = e.TS + e.Dur
	}
	if count != 6 {
		t.Errorf("there are %d events; want 6", count)
	}
}

func TestTraceReturnsTheErrorOfItsWriter(t *testing.T) {
	tl := newTimeline(t, meta.Timeline{{phase("write", 0, 1, 0)}})
	if err := tl.WriteTrace(brokenWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("WriteTrace = %v; want %v", err, errBroken)
	}
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestCheckpointWithoutTimeline(t *testing.T) {
	if _, err := inspect.NewTimeline(meta.Storage{}); !errors.Is(err, inspect.ErrNoTimeline) {
		t.Errorf("NewTimeline = %v; want ErrNoTimeline", err)
	}
}
