package cli

import (
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
		Short: "Measure cairn on this machine beside its floor",
		Long: `Bench measures planning, saving and loading, resharding, opening, converting and
groups of ranks on this machine. Figures for bytes that move come beside their
floor: the same bytes moved by plain system calls in the same run. Nothing is
asserted, and nothing stays behind that was not asked for.`,
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

func newBenchPlanCmd() *cobra.Command {
	o := bench.PlanOptions{Ranks: 1024, Tensors: 1000}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Measure the planning of a save by many ranks",
		Long: `Plan measures the global step of a save: dedup, global plan, validation and the
encoding of the index, by a coordinator that has the plans of all ranks. Nine
tensors in ten are sharded on dim 0 over all ranks, one in ten is replicated.

With --json:

  ranks, tensors, items    the size of the problem
  seconds, phases          the coordinator's work, all and by phase
  outside                  what that leaves out: the ranks' own work, done here
                           one after the other, and the wire
  wire_bytes_per_rank      the size of a rank's plan on the wire
  index_bytes              the size of the index
  peak_rss_bytes           the largest memory of the process
  repeat_seconds           the same plan once more, unchanged`,
		Example: `  cairn bench plan --ranks 1024 --tensors 1000
  cairn bench plan --ranks 8192 --json`,
		Args:              wantArgs(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "ranks", "tensors"); err != nil {
				return err
			}
			r, err := bench.Plan(cmd.Context(), o)
			if err != nil {
				return err
			}
			out := outputOf(cmd)
			return out.result(r, func() { out.benchedPlan(r) })
		},
	}
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks")
	cmd.Flags().IntVar(&o.Tensors, "tensors", o.Tensors, "number of tensors")
	return cmd
}

func (o *output) benchedPlan(r *bench.PlanResult) {
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

// addFolderFlag adds --dir. Its default is shown by name, since it depends on
// the machine.
func addFolderFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", os.TempDir(), "existing `folder` on the medium to measure; the default is that of temporary files")
	cmd.Flags().Lookup("dir").DefValue = ""
	_ = cmd.MarkFlagDirname("dir") // fails for unknown flags only
}

// check refuses a folder that is not there, and a size below smallest.
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

// atLeastOne refuses flags that count something and count none.
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
	cmd := &cobra.Command{
		Use:   "io",
		Short: "Measure saving and loading beside plain writes and reads",
		Long: `Io saves and loads a transformer-shaped state, sharded by rows over ranks of this
process, and in the same run writes and reads the same bytes plainly: one file a
rank, synced, from memory and into memory. Cold loads follow a drop of the files'
page cache. Of several rounds the best of each counts. It needs twice the size in
memory and in the folder.

With --json:

  bytes, ranks, files, repeat
  floor_save_gbs, save_gbs, save_ratio                  10^9 bytes a second
  floor_load_cold_gbs, load_cold_gbs, load_cold_ratio
  floor_load_warm_gbs, load_warm_gbs, load_warm_ratio
  peak_rss_bytes`,
		Example: `  cairn bench io --size 4GiB --ranks 1
  cairn bench io --size 1GiB --ranks 4 --dir /mnt/fast --json`,
		Args:              wantArgs(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(cmd, "ranks", "repeat"), f.check(cmd, 1<<20)); err != nil {
				return err
			}
			out := outputOf(cmd)
			r, err := bench.IO(cmd.Context(), bench.IOOptions{
				Dir: f.dir, Bytes: int64(f.size), Ranks: ranks, Repeat: repeat, Parallel: parallel, Log: out.log(),
			})
			if err != nil {
				return err
			}
			return out.result(r, func() { out.benchedIO(r) })
		},
	}
	f.add(cmd)
	cmd.Flags().IntVar(&ranks, "ranks", ranks, "number of ranks")
	cmd.Flags().IntVar(&repeat, "repeat", repeat, "number of rounds")
	cmd.Flags().IntVar(&parallel, "parallel", parallel, "reads at the same time on each rank (0: the default of a load)")
	return cmd
}

// log returns a printer of remarks on what a long measurement is doing.
func (o *output) log() func(format string, args ...any) {
	if o.json || o.quiet {
		return nil
	}
	return func(format string, args ...any) { fmt.Fprintf(o.err, format+"\n", args...) }
}

func (o *output) benchedIO(r *bench.IOResult) {
	o.printf("%s from %s, %s, best of %d\n\n", formatBytes(r.Bytes), plural(r.Ranks, "rank"), plural(r.Files, "file"), r.Repeat)
	t := newRows("", ">FLOOR GB/s", ">CAIRN GB/s", ">RATIO")
	two := func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
	t.add("save, durable", two(r.FloorSave), two(r.Save), two(r.SaveRatio))
	t.add("load, cold, verified", two(r.FloorLoadCold), two(r.LoadCold), two(r.LoadColdRatio))
	t.add("load, warm, verified", two(r.FloorLoadWarm), two(r.LoadWarm), two(r.LoadWarmRatio))
	o.table(t)
}

func newBenchReshardCmd() *cobra.Command {
	f := benchFlags{size: 256 << 20}
	cmd := &cobra.Command{
		Use:   "reshard",
		Short: "Count the bytes read when a sharding changes",
		Long: `Reshard saves matrices in one sharding, loads them in another, and counts the
bytes: those that the ranks asked for, those with the checksummed tiles around
them, and those that were read. Below 125 MiB the matrices are so small that the
tiles are most of it.

With --json: bytes, and cases with case, bytes_needed, bytes_rounded, bytes_read,
bytes_received (from other ranks: none here), requests, ratio (read over needed)
and seconds.`,
		Example:           `  cairn bench reshard --size 1GiB`,
		Args:              wantArgs(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd, 1); err != nil {
				return err
			}
			r, err := bench.Reshard(cmd.Context(), bench.ReshardOptions{Dir: f.dir, Bytes: int64(f.size)})
			if err != nil {
				return err
			}
			out := outputOf(cmd)
			return out.result(r, func() { out.benchedReshard(r) })
		},
	}
	f.add(cmd)
	return cmd
}

func (o *output) benchedReshard(r *bench.ReshardResult) {
	t := newRows("CASE", ">NEEDED", ">IN TILES", ">READ", ">REQUESTS", ">READ/NEEDED")
	for _, c := range r.Cases {
		t.add(c.Case, formatBytes(c.Needed), formatBytes(c.Rounded), formatBytes(c.Read),
			formatCount(c.Requests), strconv.FormatFloat(c.Ratio, 'f', 3, 64))
	}
	o.table(t)
}

func newBenchOpenCmd() *cobra.Command {
	o := bench.OpenOptions{Chunks: 1_000_000}
	cmd := &cobra.Command{
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
		Args:              wantArgs(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(cmd, "chunks"), wantFolder(cmd, o.Dir)); err != nil {
				return err
			}
			r, err := bench.OpenBench(cmd.Context(), o)
			if err != nil {
				return err
			}
			out := outputOf(cmd)
			return out.result(r, func() { out.benchedOpen(r) })
		},
	}
	cmd.Flags().IntVar(&o.Chunks, "chunks", o.Chunks, "number of chunks")
	cmd.Flags().StringVar(&o.Format, "format", formats.Native, "`format` of the checkpoint: native or torchdcp")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formats.Native, formats.TorchDCP}, cobra.ShellCompDirectiveNoFileComp)) // fails for unknown flags only
	cmd.Flags().StringVar(&o.Keep, "keep", "", "new `folder` for the checkpoint, which then stays")
	addFolderFlag(cmd, &o.Dir)
	return cmd
}

func (o *output) benchedOpen(r *bench.OpenResult) {
	o.printf("%s chunks of %s: index %s, record %s\n", formatCount(int64(r.Chunks)), plural(r.Tensors, "tensor"),
		formatBytes(r.IndexBytes), formatBytes(r.RecordBytes))
	o.printf("open and read all: %s; and sum it up: %s\n", formatSeconds(r.Seconds), formatSeconds(r.InspectSeconds))
	o.printf("open and find one: %.2f ms, %s read\n", r.LookupSeconds*1000, formatBytes(r.LookupBytes))
}
