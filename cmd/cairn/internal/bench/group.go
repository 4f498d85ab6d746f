package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

// GroupOptions are what to measure of groups of ranks over TCP.
type GroupOptions struct {
	// Ranks are the sizes of groups whose latency is measured, as goroutines.
	// Empty: 2, 8 and 64.
	Ranks []int
	// LatencyProcs are the same as processes. Nil: 2 and 8.
	LatencyProcs []int
	// Calls is how many calls a latency is taken of. Zero: 1000.
	Calls int
	// GatherRanks is how many ranks send a large value to one, and GatherBytes
	// how large it is. Zero: 256, and 146 KiB.
	GatherRanks, GatherBytes int
	// Procs are the numbers of processes that tensor collectives are measured
	// between. Nil: 2 and 4.
	Procs []int
	// Bytes is the size of a tensor. Zero: 256 MiB.
	Bytes int64
	// Repeat is how often a throughput is taken, ours and the floor's in turn.
	// The medians count. Zero: 5.
	Repeat int
	// Self is a program with arguments that hands one more argument to [Child].
	Self []string
	// Log, if not nil, is told what is being measured.
	Log func(format string, args ...any)
}

// WithDefaults returns o with what Group takes for what is not set.
func (o GroupOptions) WithDefaults() GroupOptions {
	if len(o.Ranks) == 0 {
		o.Ranks = []int{2, 8, 64}
	}
	if o.LatencyProcs == nil {
		o.LatencyProcs = []int{2, 8}
	}
	if o.Procs == nil {
		o.Procs = []int{2, 4}
	}
	o.Calls = positive(o.Calls, 1000)
	o.GatherRanks, o.GatherBytes = positive(o.GatherRanks, 256), positive(o.GatherBytes, 146<<10)
	o.Bytes, o.Repeat = positive(o.Bytes, 256<<20), positive(o.Repeat, 5)
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return o
}

func positive[T int | int64](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// GroupResult is how fast groups are on this machine.
type GroupResult struct {
	Latency     []GroupLatency    `json:"latency"`
	Gather      *GroupGather      `json:"gather"`
	Collectives []GroupCollective `json:"collectives"`
	Repeat      int               `json:"repeat"`
}

// Group measures groups of ranks on this machine: the latency of calls, the
// gathering of large values, and the throughput of tensor collectives between
// processes. Throughput comes beside its floor: as many bytes by as many plain
// connections.
func Group(ctx context.Context, o GroupOptions) (*GroupResult, error) {
	o = o.WithDefaults()
	r := &GroupResult{Repeat: o.Repeat}
	for _, n := range o.Ranks {
		o.Log("latency of %d ranks", n)
		l, err := latencyOfRoutines(ctx, n, o.Calls)
		if err != nil {
			return nil, fmt.Errorf("latency of %d ranks: %w", n, err)
		}
		r.Latency = append(r.Latency, l...)
	}
	for _, n := range o.LatencyProcs {
		o.Log("latency of %d processes", n)
		var l []GroupLatency
		if err := onProcesses(ctx, n, o.Self, &rankJob{Calls: o.Calls}, &l); err != nil {
			return nil, fmt.Errorf("latency of %d processes: %w", n, err)
		}
		r.Latency = append(r.Latency, l...)
	}
	o.Log("gather of %d bytes from %d ranks", o.GatherBytes, o.GatherRanks)
	var err error
	if r.Gather, err = gatherMany(ctx, o); err != nil {
		return nil, fmt.Errorf("gather from %d ranks: %w", o.GatherRanks, err)
	}
	for _, n := range o.Procs {
		o.Log("collectives of %d processes, %d rounds", n, o.Repeat)
		var c []GroupCollective
		if err := onProcesses(ctx, n, o.Self, &rankJob{Bytes: o.Bytes, Repeat: o.Repeat}, &c); err != nil {
			return nil, fmt.Errorf("collectives of %d processes: %w", n, err)
		}
		r.Collectives = append(r.Collectives, c...)
	}
	return r, nil
}

// onProcesses starts n processes that do the job as the ranks of a group, and
// decodes what rank 0 has to say into v.
func onProcesses(ctx context.Context, n int, self []string, j *rankJob, v any) error {
	if len(self) == 0 {
		return errNoSelf
	}
	arg, err := childJob{Rank: j}.argument()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	remarks := make([]bytes.Buffer, n)
	_, err = launch.Run(ctx, launch.Config{
		N: n, Command: append(self[:len(self):len(self)], arg),
		Streams: func(rank int) (stdout, stderr io.Writer) {
			if rank == 0 {
				return &out, &remarks[rank]
			}
			return nil, &remarks[rank]
		},
	})
	if err == nil {
		return json.Unmarshal(out.Bytes(), v)
	}
	for rank := range remarks {
		if text := bytes.TrimSpace(remarks[rank].Bytes()); len(text) > 0 {
			err = fmt.Errorf("%w; rank %d: %s", err, rank, text)
		}
	}
	return err
}
