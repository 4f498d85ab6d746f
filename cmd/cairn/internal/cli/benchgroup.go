package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/bench"
)

func newBenchGroupCmd() *cobra.Command {
	o := bench.GroupOptions{}.WithDefaults()
	size := sizeFlag(o.Bytes)
	cmd := &cobra.Command{
		Use:   "group",
		Short: "Measure groups of ranks beside plain connections",
		Long: `Group measures groups of ranks over the loopback of this machine: how long a
barrier and a gather of 1 KiB from each rank take, how fast plans of 146 KiB are
gathered from many ranks, and how fast tensors are reduced and broadcast between
processes. Throughput comes beside its floor: the same number of bytes over the
same number of plain connections, in turn with ours, from and into memory as large
as the tensor, and once more from and into 1 MiB that stays in the cache. The
results are medians.

With --json:

  latency        with op (barrier or gather), ranks, as (goroutines or
                 processes), median_us and p99_us (microseconds)
  gather         of large values from ranks that are goroutines: ranks,
                 bytes_per_rank, seconds, gbs (10^9 bytes a second at rank 0),
                 floor_gbs (8 plain connections), ratio, and hops, how many
                 connections a byte crosses in the mean
  collectives    with op (all_reduce or broadcast), processes, bytes (of the
                 tensor), gbs (bytes over time), wire_gbs (what has to cross
                 between processes, over time), floor_wire_gbs (plain connections
                 in the same number between the same processes) and ratio;
                 cached_wire_gbs and cached_ratio, the same against connections
                 that move 1 MiB that stays in the cache
  repeat         the number of rounds`,
		Example: `  cairn bench group
  cairn bench group --size 1GiB --procs 2,4,8 --json`,
		Args:              wantArgs(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkGroup(cmd, &o, size); err != nil {
				return err
			}
			var err error
			if o.Self, err = benchChild(); err != nil {
				return err
			}
			out := outputOf(cmd)
			o.Bytes, o.Log = int64(size), out.log()
			r, err := bench.Group(cmd.Context(), o)
			if err != nil {
				return err
			}
			return out.result(r, func() { out.benchedGroup(r) })
		},
	}
	cmd.Flags().Var(&size, "size", "size of the tensor")
	cmd.Flags().IntSliceVar(&o.Ranks, "ranks", o.Ranks, "numbers of ranks whose latency is measured")
	cmd.Flags().IntSliceVar(&o.LatencyProcs, "latency-procs", o.LatencyProcs, "numbers of processes whose latency is measured")
	cmd.Flags().IntVar(&o.Calls, "calls", o.Calls, "number of calls of a latency")
	cmd.Flags().IntVar(&o.GatherRanks, "gather-ranks", o.GatherRanks, "number of ranks that plans are gathered from")
	cmd.Flags().IntSliceVar(&o.Procs, "procs", o.Procs, "numbers of processes that tensors are reduced between")
	cmd.Flags().IntVar(&o.Repeat, "repeat", o.Repeat, "number of rounds of a throughput")
	return cmd
}

// checkGroup refuses sizes that nothing can be measured of.
func checkGroup(cmd *cobra.Command, o *bench.GroupOptions, size sizeFlag) error {
	const smallest = 1 << 10
	if size < smallest {
		return usagef(cmd, "--size is too small: at least %s", formatBytes(smallest))
	}
	for name, list := range map[string][]int{"ranks": o.Ranks, "latency-procs": o.LatencyProcs, "procs": o.Procs} {
		for _, n := range list {
			if n < 2 {
				return usagef(cmd, "--%s: a group of %d is none to measure", name, n)
			}
		}
	}
	if o.GatherRanks < 2 {
		return usagef(cmd, "--gather-ranks must be at least 2")
	}
	return atLeastOne(cmd, "calls", "repeat")
}

func (o *output) benchedGroup(r *bench.GroupResult) {
	two := func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
	t := newRows("LATENCY", ">RANKS", "AS", ">MEDIAN", ">P99")
	for _, l := range r.Latency {
		op := l.Op
		if op == "gather" {
			op += ", 1 KiB"
		}
		t.add(op, strconv.Itoa(l.Ranks), l.As, formatMicroseconds(l.Median), formatMicroseconds(l.P99))
	}
	o.table(t)
	o.printf("\n")
	t = newRows("THROUGHPUT", ">BY", ">SIZE", ">GB/s", ">ON THE WIRE", ">PLAIN", ">RATIO", ">CACHED", ">RATIO")
	for _, c := range r.Collectives {
		t.add(c.Op, fmt.Sprintf("%d processes", c.Processes), formatBytes(c.Bytes), two(c.Rate), two(c.Wire), two(c.Floor), two(c.Ratio), two(c.Cached), two(c.CachedRatio))
	}
	g := r.Gather
	t.add("gather", fmt.Sprintf("%d ranks", g.Ranks), formatBytes(int64(g.Bytes)), two(g.Rate), two(g.Rate*g.Hops), two(g.Floor), two(g.Ratio), "", "")
	o.table(t)
	o.printf("\nThe gather takes %s. A byte of it crosses %.1f connections in the mean; the ratio is\n"+
		"of what rank 0 gets.\n", formatMicroseconds(g.Seconds*1e6), g.Hops)
}

// formatMicroseconds writes a short time, as in "12.3 us".
func formatMicroseconds(us float64) string {
	if us < 1000 {
		return fmt.Sprintf("%.1f us", us)
	}
	return fmt.Sprintf("%.2f ms", us/1000)
}
