package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/bench"
)

func newBenchTreeCmd() *cobra.Command {
	o := bench.TreeOptions{PlanOptions: bench.PlanOptions{Ranks: 10_000, Tensors: 1000}}.WithDefaults()
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "Simulate the planning of a save by ten thousand ranks",
		Long: `Tree simulates the planning of a save: every rank makes its plan, the tree of
ranks gathers all plans at rank 0, which makes the final ones and scatters them.
Steps, messages, codecs and planners are those of a save, and so are the plans
(see 'cairn help bench plan'). Links are in memory. Rank 0 has a process of its
own, so that its memory can be measured apart from that of the other ranks, which
share a process.

With --json:

  ranks, tensors, items     the size of the problem
  arity, depth, max_links   the tree, and the most links that a rank holds
  wire_bytes_per_rank       the size of a rank's plan on the wire
  messages_sent, messages_received, bytes_sent, bytes_received
                            with mean (of all ranks), max (of all but rank 0)
                            and coordinator (rank 0)
  seconds, phases           from when all ranks have encoded their plans to when
                            all know the outcome, all and by phase
  outside                   what that leaves out: the ranks' own work, which one
                            process does here for all
  coordinator_peak_rss_bytes, others_peak_rss_bytes
                            the largest memory of the two processes`,
		Example: `  cairn bench tree --ranks 1000
  cairn bench tree --ranks 10000 --tensors 1000 --json`,
		Args:              wantArgs(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "tensors", "arity"); err != nil {
				return err
			}
			if o.Ranks < 2 {
				return usagef(cmd, "--ranks must be at least 2")
			}
			var err error
			if o.Self, err = benchChild(); err != nil {
				return err
			}
			out := outputOf(cmd)
			o.Log = out.log()
			r, err := bench.Tree(cmd.Context(), o)
			if err != nil {
				return err
			}
			return out.result(r, func() { out.benchedTree(r) })
		},
	}
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks")
	cmd.Flags().IntVar(&o.Tensors, "tensors", o.Tensors, "number of tensors")
	cmd.Flags().IntVar(&o.Arity, "arity", o.Arity, "number of ranks below one")
	return cmd
}

func (o *output) benchedTree(r *bench.TreeResult) {
	o.printf("%d ranks x %d tensors: %s items, plans of %s\n", r.Ranks, r.Tensors, formatCount(int64(r.Items)), formatBytes(int64(r.WireBytes)))
	o.printf("tree of arity %d: depth %d, at most %s a rank\n\n", r.Arity, r.Depth, plural(r.Links, "link"))
	t := newRows("", ">A RANK, MEAN", ">A RANK, MOST", ">RANK 0")
	row := func(name string, v bench.TreeTraffic, text func(int64) string) {
		t.add(name, text(int64(v.Mean+0.5)), text(v.Max), text(v.Coordinator))
	}
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	row("messages sent", r.MessagesSent, count)
	row("messages received", r.MessagesReceived, count)
	row("bytes sent", r.BytesSent, formatBytes)
	row("bytes received", r.BytesReceived, formatBytes)
	o.table(t)
	o.printf("\n")
	t = newRows("PHASE", ">TIME")
	for _, p := range []string{"gather", "decode", "plan", "encode", "scatter", "settle"} {
		t.add(p, formatSeconds(r.Phases[p]))
	}
	t.add("all of it", formatSeconds(r.Seconds))
	for _, p := range []string{"local_plans", "local_decode"} {
		t.add("(outside: "+p+")", formatSeconds(r.Outside[p]))
	}
	o.table(t)
	o.printf("\npeak memory: rank 0 %s, all others together %s\n", formatBytes(r.CoordinatorPeak), formatBytes(r.OthersPeak))
}

// benchChildName is the command by which benchmarks start processes.
const benchChildName = "child"

// benchChild returns how to start such a process, except for its job.
func benchChild() ([]string, error) {
	return ownCommand("bench", benchChildName)
}

func newBenchChildCmd() *cobra.Command {
	return &cobra.Command{
		Use:               benchChildName + " JOB",
		Short:             "Be a process of another benchmark",
		Long:              `Child is the command that other benchmarks start if they need several processes.`,
		Example:           `  cairn bench group`,
		Args:              wantArgs(1, 1),
		Hidden:            true,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.Child(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
}
