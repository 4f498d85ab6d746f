package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/bench"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

func newBenchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench COMMAND",
		Short: "Measure cairn on this machine and compare it with plain I/O",
		Long: `Bench measures planning, saving and loading, resharding, opening, converting and
groups of ranks on this machine. Rates are compared with a floor: the same bytes
moved by plain system calls in the same run. Bench asserts nothing, and removes
its files unless --keep is given.`,
		Example: `  cairn bench plan --ranks 1024 --tensors 1000
  cairn bench io --size 4GiB --ranks 4 --dir /mnt/fast
  cairn bench reshard
  cairn bench open --chunks 1000000 --json
  cairn bench convert --from torchdcp --to hf
  cairn bench tiny
  cairn bench group
  cairn bench tree --ranks 10000`,
		Args: cobra.ArbitraryArgs,
		RunE: runGroup,
	}
	cmd.AddCommand(newBenchPlanCmd(), newBenchIOCmd(), newBenchReshardCmd(), newBenchOpenCmd(), newBenchConvertCmd(),
		newBenchTinyCmd(), newBenchGroupCmd(), newBenchTreeCmd(), newBenchChildCmd())
	return cmd
}

// benchCommand adds to cmd what all benchmarks have in common: no arguments, and
// the output of a result. check refuses invalid flags, run measures.
func benchCommand[R any](cmd *cobra.Command, check func(cmd *cobra.Command) error,
	run func(ctx context.Context, o *output) (R, error), print func(o *output, r R)) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = wantArgs(0, 0), cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := check(cmd); err != nil {
			return err
		}
		o := outputOf(cmd)
		r, err := run(cmd.Context(), o)
		if err != nil {
			return err
		}
		return o.result(r, func() { print(o, r) })
	}
	return cmd
}

// two prints a number with two decimals.
func two(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

func newBenchPlanCmd() *cobra.Command {
	o := bench.PlanOptions{Ranks: 1024, Tensors: 1000}
	cmd := benchCommand(&cobra.Command{
		Use:   "plan",
		Short: "Measure the planning of a save by many ranks",
		Long: `Plan measures the global step of a save: dedup, global plan, validation and the
encoding of the index, by a coordinator that has the plans of all ranks. Nine
tensors in ten are sharded on dim 0 over all ranks, one in ten is replicated.

With --json:

  ranks, tensors, items    the size of the problem
  seconds, phases          the coordinator's work, in total and by phase
  outside                  not included above: the ranks' own work, done here one
                           after the other, and the wire
  wire_bytes_per_rank      the size of a rank's plan on the wire
  index_bytes              the size of the index
  peak_rss_bytes           the largest memory of the process
  repeat_seconds           the same plan once more, unchanged`,
		Example: `  cairn bench plan --ranks 1024 --tensors 1000
  cairn bench plan --ranks 8192 --json`,
	}, func(cmd *cobra.Command) error { return atLeastOne(cmd, "ranks", "tensors") },
		func(ctx context.Context, _ *output) (*bench.PlanResult, error) { return bench.Plan(ctx, o) }, printPlanBench)
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks")
	cmd.Flags().IntVar(&o.Tensors, "tensors", o.Tensors, "number of tensors")
	return cmd
}

func printPlanBench(o *output, r *bench.PlanResult) {
	o.printf("%d ranks x %d tensors: %s items\n\n", r.Ranks, r.Tensors, formatCount(int64(r.Items)))
	t := newRows("PHASE", ">TIME")
	for _, p := range slices.Sorted(maps.Keys(r.Phases)) {
		t.add(p, formatSeconds(r.Phases[p]))
	}
	t.add("all of it", formatSeconds(r.Seconds))
	t.add("once more, unchanged", fmt.Sprintf("%.2f ms", r.RepeatSeconds*1000))
	for _, p := range slices.Sorted(maps.Keys(r.Outside)) {
		t.add("(outside: "+p+")", formatSeconds(r.Outside[p]))
	}
	o.table(t)
	o.printf("\nindex %s, plan on the wire %s a rank, peak memory %s\n",
		formatBytes(int64(r.IndexBytes)), formatBytes(int64(r.WireBytes)), formatBytes(r.PeakRSS))
}

// benchFlags are the flags of the benchmarks that write files.
type benchFlags struct {
	dir  string
	size sizeFlag
}

func (f *benchFlags) add(cmd *cobra.Command) {
	addFolderFlag(cmd, &f.dir)
	cmd.Flags().Var(&f.size, "size", "size of the state")
}

// addFolderFlag adds --dir. The help describes its default, which depends on the
// machine.
func addFolderFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", os.TempDir(), "existing `folder` on the medium to measure; the default is that of temporary files")
	cmd.Flags().Lookup("dir").DefValue = ""
	_ = cmd.MarkFlagDirname("dir") // fails for unknown flags only
}

// check refuses a missing folder and a size below smallest.
func (f *benchFlags) check(cmd *cobra.Command, smallest int64) error {
	if int64(f.size) < smallest {
		return usagef(cmd, "--size is too small: at least %s", formatBytes(smallest))
	}
	return wantFolder(cmd, f.dir)
}

func wantFolder(cmd *cobra.Command, dir string) error {
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return usagef(cmd, "--dir %s: there is no such folder", quoteArg(dir))
	}
	return nil
}

// atLeastOne refuses values of the flags below 1.
func atLeastOne(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if n, err := cmd.Flags().GetInt(name); err != nil || n < 1 {
			return usagef(cmd, "--%s must be at least 1", name)
		}
	}
	return nil
}

func newBenchIOCmd() *cobra.Command {
	f := benchFlags{size: 4 << 30}
	ranks, repeat, parallel := 1, 3, 0
	cmd := benchCommand(&cobra.Command{
		Use:   "io",
		Short: "Measure saving and loading, and plain writes and reads",
		Long: `Io saves and loads a transformer-shaped state, sharded by rows over ranks of this
process, and in the same run writes and reads the same bytes plainly: one file a
rank, synced, from memory and into memory. Cold loads follow a drop of the files'
page cache. The best of several rounds counts. It needs twice the size in memory
and in the folder.

With --json:

  bytes, ranks, files, repeat
  floor_save_gbs, save_gbs, save_ratio                  10^9 bytes a second
  floor_load_cold_gbs, load_cold_gbs, load_cold_ratio
  floor_load_warm_gbs, load_warm_gbs, load_warm_ratio
  peak_rss_bytes`,
		Example: `  cairn bench io --size 4GiB --ranks 1
  cairn bench io --size 1GiB --ranks 4 --dir /mnt/fast --json`,
	}, func(cmd *cobra.Command) error {
		return errors.Join(atLeastOne(cmd, "ranks", "repeat"), f.check(cmd, 1<<20))
	}, func(ctx context.Context, out *output) (*bench.IOResult, error) {
		return bench.IO(ctx, bench.IOOptions{
			Dir: f.dir, Bytes: int64(f.size), Ranks: ranks, Repeat: repeat, Parallel: parallel, Log: benchLog(out),
		})
	}, printIOBench)
	f.add(cmd)
	cmd.Flags().IntVar(&ranks, "ranks", ranks, "number of ranks")
	cmd.Flags().IntVar(&repeat, "repeat", repeat, "number of rounds")
	cmd.Flags().IntVar(&parallel, "parallel", parallel, "reads at the same time on each rank (0: the default of a load)")
	return cmd
}

// benchLog returns a function that prints the progress of a measurement.
func benchLog(o *output) func(format string, args ...any) {
	if o.json || o.quiet {
		return nil
	}
	return func(format string, args ...any) { fmt.Fprintf(o.err, format+"\n", args...) }
}

func printIOBench(o *output, r *bench.IOResult) {
	o.printf("%s from %s, %s, best of %d\n\n", formatBytes(r.Bytes), plural(r.Ranks, "rank"), plural(r.Files, "file"), r.Repeat)
	t := newRows("", ">FLOOR GB/s", ">CAIRN GB/s", ">RATIO")
	t.add("save, durable", two(r.FloorSave), two(r.Save), two(r.SaveRatio))
	t.add("load, cold, verified", two(r.FloorLoadCold), two(r.LoadCold), two(r.LoadColdRatio))
	t.add("load, warm, verified", two(r.FloorLoadWarm), two(r.LoadWarm), two(r.LoadWarmRatio))
	o.table(t)
}

func newBenchReshardCmd() *cobra.Command {
	f := benchFlags{size: 256 << 20}
	cmd := benchCommand(&cobra.Command{
		Use:   "reshard",
		Short: "Count the bytes read when a sharding changes",
		Long: `Reshard saves matrices in one sharding, loads them in another, and counts the
bytes: those that the ranks asked for, those with the checksummed tiles around
them, and those that were read. Below 125 MiB the matrices are small compared to
the tiles.

With --json: bytes, and cases with case, bytes_needed, bytes_rounded, bytes_read,
bytes_received (from other ranks: none here), requests, ratio (read over needed)
and seconds.`,
		Example: `  cairn bench reshard --size 1GiB`,
	}, func(cmd *cobra.Command) error { return f.check(cmd, 1) },
		func(ctx context.Context, _ *output) (*bench.ReshardResult, error) {
			return bench.Reshard(ctx, bench.ReshardOptions{Dir: f.dir, Bytes: int64(f.size)})
		}, printReshardBench)
	f.add(cmd)
	return cmd
}

func printReshardBench(o *output, r *bench.ReshardResult) {
	t := newRows("CASE", ">NEEDED", ">IN TILES", ">READ", ">REQUESTS", ">READ/NEEDED")
	for _, c := range r.Cases {
		t.add(c.Case, formatBytes(c.Needed), formatBytes(c.Rounded), formatBytes(c.Read),
			formatCount(c.Requests), strconv.FormatFloat(c.Ratio, 'f', 3, 64))
	}
	o.table(t)
}

func newBenchOpenCmd() *cobra.Command {
	o := bench.OpenOptions{Chunks: 1_000_000}
	cmd := benchCommand(&cobra.Command{
		Use:   "open",
		Short: "Measure opening a checkpoint of many chunks",
		Long: `Open writes record and index of a checkpoint of many chunks, without data, and
measures opening it and reading the whole index, and opening it and finding one
name. With --format torchdcp it is the .metadata of a PyTorch checkpoint. With
--keep the checkpoint stays, so that 'cairn inspect' can be timed on it.

With --json:

  format, chunks, tensors        what the checkpoint is and holds
  seconds, index_bytes           opening and reading the whole index
  inspect_seconds                the same with the summary of 'cairn inspect'
  lookup_seconds, lookup_bytes   opening and finding one name
  record_bytes                   the size of the commit record
  peak_rss_bytes                 the largest memory of the process`,
		Example: `  cairn bench open --chunks 1000000 --json
  cairn bench open --chunks 1000000 --format torchdcp --keep many && cairn inspect many`,
	}, func(cmd *cobra.Command) error { return errors.Join(atLeastOne(cmd, "chunks"), wantFolder(cmd, o.Dir)) },
		func(ctx context.Context, _ *output) (*bench.OpenResult, error) { return bench.OpenBench(ctx, o) }, printOpenBench)
	cmd.Flags().IntVar(&o.Chunks, "chunks", o.Chunks, "number of chunks")
	cmd.Flags().StringVar(&o.Format, "format", formats.Native, "`format` of the checkpoint: native or torchdcp")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formats.Native, formats.TorchDCP}, cobra.ShellCompDirectiveNoFileComp)) // fails for unknown flags only
	cmd.Flags().StringVar(&o.Keep, "keep", "", "new `folder` for the checkpoint, which then stays")
	addFolderFlag(cmd, &o.Dir)
	return cmd
}

func printOpenBench(o *output, r *bench.OpenResult) {
	o.printf("%s chunks of %s: index %s, record %s\n", formatCount(int64(r.Chunks)), plural(r.Tensors, "tensor"),
		formatBytes(r.IndexBytes), formatBytes(r.RecordBytes))
	o.printf("open and read all: %s; and summarise: %s\n", formatSeconds(r.Seconds), formatSeconds(r.InspectSeconds))
	o.printf("open and find one: %.2f ms, %s read\n", r.LookupSeconds*1000, formatBytes(r.LookupBytes))
}

func newBenchConvertCmd() *cobra.Command {
	f := benchFlags{size: 4 << 30}
	o := bench.ConvertOptions{From: formats.TorchDCP, To: formats.HF, Ranks: 4, Repeat: 3}
	memory := sizeFlag(512 << 20)
	cmd := benchCommand(&cobra.Command{
		Use:   "convert",
		Short: "Measure a conversion and a plain copy",
		Long: `Convert saves a transformer-shaped state in one format, converts it to another,
and in the same run copies the source's files by plain reads and writes. Both are
synced, and both begin with a drop of the source's page cache. The best of several
rounds counts. It needs three times the size in the folder.

With --json:

  from, to, bytes, source_files, repeat
  copy_gbs, convert_gbs, ratio    10^9 bytes a second, and ours over the copy's
  peak_rss_bytes                  the largest memory while it converts`,
		Example: `  cairn bench convert --size 4GiB --from torchdcp --to hf
  cairn bench convert --size 4GiB --from native --to torchdcp --json`,
	}, func(cmd *cobra.Command) error {
		return errors.Join(atLeastOne(cmd, "ranks", "repeat"), f.check(cmd, 1<<20))
	}, func(ctx context.Context, out *output) (*bench.ConvertResult, error) {
		o.Dir, o.Bytes, o.Memory, o.Log = f.dir, int64(f.size), int64(memory), benchLog(out)
		return bench.Convert(ctx, o)
	}, printConvertBench)
	f.add(cmd)
	cmd.Flags().StringVar(&o.From, "from", o.From, "`format` of the source")
	cmd.Flags().StringVar(&o.To, "to", o.To, "`format` of the target")
	for _, name := range []string{"from", "to"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(formats.Names(), cobra.ShellCompDirectiveNoFileComp)) // fails for unknown flags only
	}
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks that save the source")
	cmd.Flags().IntVar(&o.Repeat, "repeat", o.Repeat, "number of rounds")
	cmd.Flags().Var(&memory, "memory", "bound of the conversion's buffers")
	return cmd
}

func printConvertBench(o *output, r *bench.ConvertResult) {
	o.printf("%s from %s to %s, best of %d\n\n", formatBytes(r.Bytes), r.From, r.To, r.Repeat)
	t := newRows(">COPY GB/s", ">CONVERT GB/s", ">RATIO", ">PEAK MEMORY")
	t.add(two(r.Copy), two(r.Convert), two(r.Ratio), formatBytes(r.PeakRSS))
	o.table(t)
}

func newBenchGroupCmd() *cobra.Command {
	o := bench.GroupOptions{}.WithDefaults()
	size := sizeFlag(o.Bytes)
	cmd := benchCommand(&cobra.Command{
		Use:   "group",
		Short: "Measure groups of ranks and plain connections",
		Long: `Group measures groups of ranks over the loopback of this machine: how long a
barrier and a gather of 1 KiB from each rank take, how fast plans of 146 KiB are
gathered from many ranks, and how fast tensors are reduced and broadcast between
processes. The floor of throughput is the same number of bytes over the same
number of plain connections, measured alternately, from and to memory of the size
of the tensor, and also from and to 1 MiB that stays in the cache. The results are
medians.

With --json:

  latency        with op (barrier or gather), ranks, as (goroutines or
                 processes), median_us and p99_us (microseconds)
  gather         of large values from ranks that are goroutines: ranks,
                 bytes_per_rank, seconds, gbs (10^9 bytes a second at rank 0),
                 floor_gbs (8 plain connections), ratio, and hops, the mean
                 number of connections that a byte crosses
  collectives    with op (all_reduce or broadcast), processes, bytes (of the
                 tensor), gbs (bytes over time), wire_gbs (what has to cross
                 between processes, over time), floor_wire_gbs (plain connections
                 in the same number between the same processes) and ratio;
                 cached_wire_gbs and cached_ratio, the same against connections
                 that move 1 MiB that stays in the cache
  repeat         the number of rounds`,
		Example: `  cairn bench group
  cairn bench group --size 1GiB --procs 2,4,8 --json`,
	}, func(cmd *cobra.Command) error { return checkGroup(cmd, &o, size) },
		func(ctx context.Context, out *output) (r *bench.GroupResult, err error) {
			if o.Self, err = benchChild(); err != nil {
				return nil, err
			}
			o.Bytes, o.Log = int64(size), benchLog(out)
			return bench.Group(ctx, o)
		}, printGroupBench)
	cmd.Flags().Var(&size, "size", "size of the tensor")
	cmd.Flags().IntSliceVar(&o.Ranks, "ranks", o.Ranks, "numbers of ranks whose latency is measured")
	cmd.Flags().IntSliceVar(&o.LatencyProcs, "latency-procs", o.LatencyProcs, "numbers of processes whose latency is measured")
	cmd.Flags().IntVar(&o.Calls, "calls", o.Calls, "number of calls of a latency")
	cmd.Flags().IntVar(&o.GatherRanks, "gather-ranks", o.GatherRanks, "number of ranks that plans are gathered from")
	cmd.Flags().IntSliceVar(&o.Procs, "procs", o.Procs, "numbers of processes that tensors are reduced between")
	cmd.Flags().IntVar(&o.Repeat, "repeat", o.Repeat, "number of rounds of a throughput")
	return cmd
}

// checkGroup refuses values that cannot be measured.
func checkGroup(cmd *cobra.Command, o *bench.GroupOptions, size sizeFlag) error {
	const smallest = 1 << 10
	if size < smallest {
		return usagef(cmd, "--size is too small: at least %s", formatBytes(smallest))
	}
	for name, list := range map[string][]int{"ranks": o.Ranks, "latency-procs": o.LatencyProcs, "procs": o.Procs} {
		for _, n := range list {
			if n < 2 {
				return usagef(cmd, "--%s: cannot measure a group of %d, want 2 or more", name, n)
			}
		}
	}
	if o.GatherRanks < 2 {
		return usagef(cmd, "--gather-ranks must be at least 2")
	}
	return atLeastOne(cmd, "calls", "repeat")
}

func printGroupBench(o *output, r *bench.GroupResult) {
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
	o.printf("\nThe gather takes %s. A byte of it crosses %.1f connections on average; the ratio is\n"+
		"that of the bytes that rank 0 receives.\n", formatMicroseconds(g.Seconds*1e6), g.Hops)
}

// formatMicroseconds prints a short time, such as "12.3 us".
func formatMicroseconds(us float64) string {
	if us < 1000 {
		return fmt.Sprintf("%.1f us", us)
	}
	return fmt.Sprintf("%.2f ms", us/1000)
}

func newBenchTinyCmd() *cobra.Command {
	o := bench.TinyOptions{Tensors: 200_000}
	cmd := benchCommand(&cobra.Command{
		Use:   "tiny",
		Short: "Measure a checkpoint of very many small tensors",
		Long: `Tiny saves a checkpoint of tensors of four elements and runs commands of cairn
on it, each as a process of its own: the cost is the work for each name, not the
bytes. On a busy machine the processor time is more reliable than the elapsed
time.

With --json:

  tensors    their number
  steps      with step, seconds (elapsed), cpu_seconds (of all processors)
             and peak_rss_bytes (the largest memory)`,
		Example: `  cairn bench tiny
  cairn bench tiny --tensors 20000 --json`,
	}, func(cmd *cobra.Command) error {
		return errors.Join(atLeastOne(cmd, "tensors"), wantFolder(cmd, o.Dir))
	}, func(ctx context.Context, out *output) (r *bench.TinyResult, err error) {
		if o.Self, err = benchChild(); err != nil {
			return nil, err
		}
		if o.Program, err = ownCommand(); err != nil {
			return nil, err
		}
		o.Log = benchLog(out)
		return bench.Tiny(ctx, o)
	}, printTinyBench)
	addFolderFlag(cmd, &o.Dir)
	cmd.Flags().IntVar(&o.Tensors, "tensors", o.Tensors, "number of tensors")
	return cmd
}

func printTinyBench(o *output, r *bench.TinyResult) {
	o.printf("%s tensors of 16 bytes\n\n", formatCount(int64(r.Tensors)))
	t := newRows("STEP", ">TIME", ">CPU", ">PEAK MEMORY")
	for _, s := range r.Steps {
		t.add(s.Step, formatSeconds(s.Seconds), formatSeconds(s.CPUSeconds), formatBytes(s.PeakRSS))
	}
	o.table(t)
}

func newBenchTreeCmd() *cobra.Command {
	o := bench.TreeOptions{PlanOptions: bench.PlanOptions{Ranks: 10_000, Tensors: 1000}}.WithDefaults()
	cmd := benchCommand(&cobra.Command{
		Use:   "tree",
		Short: "Simulate the planning of a save by ten thousand ranks",
		Long: `Tree simulates the planning of a save: every rank makes its plan, the tree of
ranks gathers all plans at rank 0, which makes the final plans and scatters them.
Steps, messages, codecs, planners and plans are those of a save (see 'cairn help
bench plan'). Links are in memory. Rank 0 has a process of its own, so that its
memory can be measured; the other ranks share a process.

With --json:

  ranks, tensors, items     the size of the problem
  arity, depth, max_links   the tree, and the most links that a rank holds
  wire_bytes_per_rank       the size of a rank's plan on the wire
  messages_sent, messages_received, bytes_sent, bytes_received
                            with mean (of all ranks), max (of all but rank 0)
                            and coordinator (rank 0)
  seconds, phases           from when all ranks have encoded their plans to when
                            all have the outcome, in total and by phase
  outside                   not included above: the ranks' own work, which one
                            process does here for all
  coordinator_peak_rss_bytes, others_peak_rss_bytes
                            the largest memory of the two processes`,
		Example: `  cairn bench tree --ranks 1000
  cairn bench tree --ranks 10000 --tensors 1000 --json`,
	}, func(cmd *cobra.Command) error {
		if o.Ranks < 2 {
			return usagef(cmd, "--ranks must be at least 2")
		}
		return atLeastOne(cmd, "tensors", "arity")
	}, func(ctx context.Context, out *output) (r *bench.TreeResult, err error) {
		if o.Self, err = benchChild(); err != nil {
			return nil, err
		}
		o.Log = benchLog(out)
		return bench.Tree(ctx, o)
	}, printTreeBench)
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks")
	cmd.Flags().IntVar(&o.Tensors, "tensors", o.Tensors, "number of tensors")
	cmd.Flags().IntVar(&o.Arity, "arity", o.Arity, "number of children of a rank")
	return cmd
}

func printTreeBench(o *output, r *bench.TreeResult) {
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

// benchChildName is the command that benchmarks use to start processes.
const benchChildName = "child"

// benchChild returns the command line of such a process, without its job.
func benchChild() ([]string, error) {
	return ownCommand("bench", benchChildName)
}

func newBenchChildCmd() *cobra.Command {
	return &cobra.Command{
		Use:               benchChildName + " JOB",
		Short:             "Run a process of another benchmark",
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
