package inspect

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
)

// ErrNoTimeline reports a checkpoint that does not say how long its save took.
var ErrNoTimeline = errors.New("the checkpoint has no timeline")

// Timeline describes how long the ranks of a save took for its phases.
type Timeline struct {
	SaveID string `json:"save_id"`
	Step   *int64 `json:"step"`
	// Seconds is from the first beginning of a phase to the last end of one.
	Seconds float64 `json:"seconds"`
	// MedianBusy is how long the median rank was busy.
	MedianBusy float64 `json:"median_busy_seconds"`
	// Phases has each phase over all ranks, in the order in which they begin.
	Phases []PhaseTotals `json:"phases"`
	// Ranks are all ranks, in their order.
	Ranks []RankTimeline `json:"ranks"`
}

// PhaseTotals describes a phase over all ranks that have it.
type PhaseTotals struct {
	Name  string `json:"name"`
	Ranks int    `json:"ranks"`
	// Median and Slowest are the seconds of the phase on the median rank and on
	// SlowestRank, the rank that took the longest.
	Median      float64 `json:"median_seconds"`
	Slowest     float64 `json:"slowest_seconds"`
	SlowestRank int     `json:"slowest_rank"`
	Bytes       int64   `json:"bytes"`
}

// RankTimeline has the phases of one rank.
type RankTimeline struct {
	Rank int `json:"rank"`
	// Busy is how long its phases took together, without those in which rank 0 works
	// for all ranks.
	Busy float64 `json:"busy_seconds"`
	// Slow is set if the rank was busy much longer than the median rank, so that the
	// others had to wait for it.
	Slow   bool        `json:"slow"`
	Phases []RankPhase `json:"phases"` // in the order in which they began
}

// RankPhase is a phase of one rank, in seconds since the beginning of the save.
type RankPhase struct {
	Name  string  `json:"name"`
	Start float64 `json:"start_seconds"`
	End   float64 `json:"end_seconds"`
	Bytes int64   `json:"bytes"`

	took time.Duration
}

// NewTimeline describes the timeline of a checkpoint. The error wraps ErrNoTimeline if the
// checkpoint has no timeline.
func NewTimeline(s meta.Storage) (*Timeline, error) {
	if len(s.Timeline) == 0 {
		return nil, fmt.Errorf("%w: only jobs that save in cairn's own format record one", ErrNoTimeline)
	}
	out := &Timeline{SaveID: s.SaveID, Step: s.Step, Ranks: make([]RankTimeline, len(s.Timeline))}
	for rank, phases := range s.Timeline {
		r := &out.Ranks[rank]
		r.Rank, r.Phases = rank, make([]RankPhase, len(phases))
		var busy time.Duration
		for i, p := range phases {
			r.Phases[i] = RankPhase{Name: p.Name, Start: p.Start.Seconds(), End: p.End.Seconds(), Bytes: p.Bytes, took: p.End - p.Start}
			out.Seconds = max(out.Seconds, p.End.Seconds())
			if p.Name != meta.PhaseCommit && p.Name != meta.PhaseGlobalPlan {
				busy += p.End - p.Start
			}
		}
		r.Busy = busy.Seconds()
		slices.SortStableFunc(r.Phases, func(a, b RankPhase) int { return cmp.Compare(a.Start, b.Start) })
	}
	out.sum()
	out.findSlow()
	return out, nil
}

// sum sets the totals of the phases.
func (t *Timeline) sum() {
	times := map[string][]float64{}
	first := map[string]float64{} // when a phase begins
	totals := map[string]*PhaseTotals{}
	names := []string{}
	for _, r := range t.Ranks {
		for _, p := range r.Phases {
			x := totals[p.Name]
			if x == nil {
				x = &PhaseTotals{Name: p.Name, SlowestRank: r.Rank}
				totals[p.Name], first[p.Name], names = x, p.Start, append(names, p.Name)
			}
			first[p.Name] = min(first[p.Name], p.Start)
			times[p.Name] = append(times[p.Name], p.took.Seconds())
			if took := p.took.Seconds(); took > x.Slowest {
				x.Slowest, x.SlowestRank = took, r.Rank
			}
			x.Ranks++
			x.Bytes += p.Bytes
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(first[a], first[b]) })
	t.Phases = []PhaseTotals{}
	for _, name := range names {
		x := totals[name]
		x.Median = median(times[name])
		t.Phases = append(t.Phases, *x)
	}
}

// median sorts the seconds of ranks, at least one, and returns the seconds of the median
// rank. Of two ranks in the middle it is the faster one, so that of two ranks, too, one can
// be slow.
func median(seconds []float64) float64 {
	slices.Sort(seconds)
	return seconds[(len(seconds)-1)/2]
}

// A rank is slow if it is busy this many times as long as the median rank, and if the
// difference is this part of the whole save.
const (
	slowFactor = 1.25
	slowPart   = 0.05
)

func (t *Timeline) findSlow() {
	busy := make([]float64, len(t.Ranks))
	for i, r := range t.Ranks {
		busy[i] = r.Busy
	}
	t.MedianBusy = median(busy)

	for i := range t.Ranks {
		r := &t.Ranks[i]
		r.Slow = r.Busy > t.MedianBusy*slowFactor && r.Busy-t.MedianBusy > t.Seconds*slowPart
	}
}

// bySpeed returns the ranks, the slowest first.
func (t *Timeline) bySpeed() []RankTimeline {
	order := slices.Clone(t.Ranks)
	slices.SortStableFunc(order, func(a, b RankTimeline) int { return cmp.Compare(b.Busy, a.Busy) })
	return order
}

// Typical returns at most most ranks that stand for all: if there are more, the slowest
// ones and those around the median, the slowest first.
func (t *Timeline) Typical(most int) []RankTimeline {
	if len(t.Ranks) <= most {
		return t.Ranks
	}
	order := t.bySpeed()
	median := most / 4
	from := max(most-median, len(order)/2-median/2)
	from = min(from, len(order)-median)
	return append(order[:most-median:most-median], order[from:from+median]...)
}

// traceEvent is an event in the trace event format.
type traceEvent struct {
	Name string `json:"name"`
	Cat  string `json:"cat,omitempty"`
	Ph   string `json:"ph"`
	TS   int64  `json:"ts"` // microseconds
	Dur  *int64 `json:"dur,omitempty"`
	PID  int    `json:"pid"`
	TID  int    `json:"tid"`
	Args any    `json:"args,omitempty"`
}

// The tracks of a rank. Staging overlaps the other phases, and the events of one track
// must not overlap.
const (
	saveTrack  = 1
	stageTrack = 2
)

// WriteTrace writes the timeline in the trace event format, which Perfetto and other
// viewers open. Each rank is a process.
func (t *Timeline) WriteTrace(w io.Writer) error {
	b := bufio.NewWriter(w)
	id, _ := json.Marshal(t.SaveID) // a string can always be marshalled
	fmt.Fprintf(b, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"save_id\":%s},\"traceEvents\":[", id)
	sep := "\n"
	for i := range t.Ranks {
		for _, e := range t.Ranks[i].events() {
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(b, "%s%s", sep, text); err != nil {
				return err
			}
			sep = ",\n"
		}
	}
	fmt.Fprint(b, "\n]}\n")
	return b.Flush()
}

func micros(seconds float64) int64 { return int64(math.Round(seconds * 1e6)) }

// events returns the trace events of a rank.
func (r *RankTimeline) events() []traceEvent {
	describe := func(name string, track int, args any) traceEvent {
		return traceEvent{Name: name, Ph: "M", PID: r.Rank, TID: track, Args: args}
	}
	out := []traceEvent{
		describe("process_name", 0, map[string]string{"name": fmt.Sprintf("rank %d", r.Rank)}),
		describe("process_sort_index", 0, map[string]int{"sort_index": r.Rank}),
		describe("thread_name", saveTrack, map[string]string{"name": "save"}),
	}
	staged := false
	for _, p := range r.Phases {
		track := saveTrack
		if p.Name == meta.PhaseStage {
			track = stageTrack
			if !staged {
				out = append(out, describe("thread_name", stageTrack, map[string]string{"name": "stage"}))
			}
			staged = true
		}
		start := micros(p.Start)
		out = append(out, traceEvent{
			Name: p.Name, Cat: "save", Ph: "X", TS: start, Dur: new(micros(p.End) - start), PID: r.Rank, TID: track,
			Args: map[string]int64{"bytes": p.Bytes},
		})
	}
	return out
}
