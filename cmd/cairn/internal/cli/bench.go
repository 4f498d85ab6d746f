package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/bench"
)

func newBenchCmd() *cobra.Command {
	cmd := newCommand("bench", cobra.ArbitraryArgs, nil, runGroup)
	cmd.AddCommand(newBenchIOCmd(), newBenchAsyncCmd(), newBenchDeltaCmd(), newBenchVersionsCmd(), newBenchBlobCmd(), newBenchMemoryCmd(), newBenchConvertCmd())
	return cmd
}

// lowest has the lowest values of flags.
type lowest map[string]int64

// check refuses a flag with a lower value, and a --dir that is not a folder.
func (l lowest) check(cmd *cobra.Command) error {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		value := cmd.Flags().Lookup(name).Value
		if size, ok := value.(*sizeFlag); ok && int64(*size) < l[name] {
			return usagef(cmd, "--%s is too small: at least %s", name, formatBytes(l[name]))
		}
		if n, err := cmd.Flags().GetInt(name); err == nil && int64(n) < l[name] {
			return usagef(cmd, "--%s must be at least %d", name, l[name])
		}
		list, _ := cmd.Flags().GetIntSlice(name)
		if i := slices.IndexFunc(list, func(n int) bool { return int64(n) < l[name] }); i >= 0 {
			return usagef(cmd, "--%s: %d is too small: at least %d", name, list[i], l[name])
		}
	}
	dir := cmd.Flags().Lookup("dir")
	if dir == nil {
		return nil
	}
	if fi, err := os.Stat(dir.Value.String()); err != nil || !fi.IsDir() {
		return usagef(cmd, "--dir %s: there is no such folder", quoteArg(dir.Value.String()))
	}
	return nil
}

// benchCommand returns a benchmark: a command without arguments that measures with
// run and prints the result.
func benchCommand[R any](name string, low lowest, run func(ctx context.Context, o *output) (R, error), print func(o *output, r R)) *cobra.Command {
	return newCommand("bench-"+name, wantArgs(0, 0), cobra.NoFileCompletions, func(cmd *cobra.Command, _ []string) error {
		if err := low.check(cmd); err != nil {
			return err
		}
		o := outputOf(cmd)
		r, err := run(cmd.Context(), o)
		if err != nil {
			return err
		}
		return o.result(r, func() { print(o, r) })
	})
}

// two prints a number with two decimals.
func two(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// addFolderFlag adds --dir. The help describes its default, which depends on the
// machine.
func addFolderFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", os.TempDir(), "existing `folder` on the medium to measure; the default is the folder of temporary files")
	hideDefault(cmd.Flags(), "dir")
	_ = cmd.MarkFlagDirname("dir") // fails for unknown flags only
}

func newBenchIOCmd() *cobra.Command {
	o := bench.IOOptions{Bytes: 4 << 30, Ranks: 1, Repeat: 3}
	cmd := benchCommand("io", lowest{"ranks": 1, "repeat": 1, "size": 1 << 20}, func(ctx context.Context, out *output) (*bench.IOResult, error) {
		o.Log, o.Logger = benchLog(out), out.logger()
		return bench.IO(ctx, o)
	}, printIOBench)
	addFolderFlag(cmd, &o.Dir)
	cmd.Flags().Var((*sizeFlag)(&o.Bytes), "size", "size of the state")
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks")
	cmd.Flags().IntVar(&o.Repeat, "repeat", o.Repeat, "number of rounds")
	cmd.Flags().IntVar(&o.Parallel, "parallel", 0, "reads at the same time on each rank (0: the default of a load)")
	return cmd
}

func newBenchConvertCmd() *cobra.Command {
	var o bench.ConvertOptions
	cmd := newCommand("bench-convert", cobra.ArbitraryArgs, cobra.NoFileCompletions, func(cmd *cobra.Command, args []string) (err error) {
		if o.From == "" {
			return usagef(cmd, "--from is missing: it names the checkpoint to convert")
		}
		if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
			return usagef(cmd, "the flags of 'cairn convert' come after --, such as: --from %s -- --to hf", quoteArg(o.From))
		}
		if err := (lowest{"repeat": 1}).check(cmd); err != nil {
			return err
		}
		if o.Program, err = ownCommand("convert"); err != nil {
			return err
		}
		out := outputOf(cmd)
		o.Args, o.Log = args, benchLog(out)
		r, err := bench.Convert(cmd.Context(), o)
		if err != nil {
			return err
		}
		return out.result(r, func() { printConvertBench(out, r) })
	})
	addFolderFlag(cmd, &o.Dir)
	cmd.Flags().StringVar(&o.From, "from", "", "`path` of the checkpoint to convert")
	cmd.Flags().IntVar(&o.Repeat, "repeat", 3, "number of rounds")
	return cmd
}

func printConvertBench(o *output, r *bench.ConvertResult) {
	o.printf("%s in %s from %s, best of %d\n\n", formatBytes(r.Bytes), plural(r.Files, "file"), clean(r.From), r.Repeat)
	t := newRows(">COPY GB/s", ">CONVERT GB/s", ">RATIO", ">CPU s", ">MEMORY")
	t.add(two(r.Copy), two(r.Convert), two(r.Ratio), two(r.CPU), formatBytes(r.PeakRSS))
	o.table(t)
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

func newBenchDeltaCmd() *cobra.Command {
	o := bench.DeltaOptions{Bytes: 4 << 30, Ranks: 4}
	cmd := benchCommand("delta", lowest{"ranks": 1, "size": 1 << 20}, func(ctx context.Context, out *output) (*bench.DeltaResult, error) {
		o.Log = benchLog(out)
		return bench.Delta(ctx, o)
	}, printDeltaBench)
	addFolderFlag(cmd, &o.Dir)
	cmd.Flags().Var((*sizeFlag)(&o.Bytes), "size", "size of the state")
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks")
	return cmd
}

func printDeltaBench(o *output, r *bench.DeltaResult) {
	o.printf("%s from %s, a chain of %d saves\n\n", formatBytes(r.Bytes), plural(r.Ranks, "rank"), r.Chain)
	t := newRows("", ">BYTES", ">FULL s", ">DELTA s", ">TIME", ">LOAD, COLD", ">LOAD, WARM", ">FOLDERS", ">KEPT")
	for _, c := range r.Cases {
		t.add(c.Case, two(100*c.BytesRatio)+" %", two(c.FullSeconds), two(c.DeltaSeconds), two(c.SecondsRatio), two(c.LoadColdRatio), two(c.LoadWarmRatio),
			fmt.Sprintf("%d of %d", c.Folders, c.FoldersBound), two(c.KeptRatio)+" of "+two(c.KeptRatioBound))
	}
	o.table(t)
}

func newBenchVersionsCmd() *cobra.Command {
	o := bench.VersionsOptions{Bytes: 1 << 30, Versions: 6}
	follow := false
	cmd := benchCommand("versions", lowest{"size": 1 << 20, "versions": 2}, func(ctx context.Context, out *output) (r *bench.VersionsResult, err error) {
		if follow {
			return nil, bench.FollowVersions(ctx, o.Bytes, os.Stdin, os.Stdout)
		}
		if o.Program, err = ownCommand(); err != nil {
			return nil, err
		}
		if o.Follower, err = ownCommand("bench", "versions", "--follow", "--quiet"); err != nil {
			return nil, err
		}
		o.Log = benchLog(out)
		return bench.Versions(ctx, o)
	}, printVersionsBench)
	addFolderFlag(cmd, &o.Dir)
	cmd.Flags().Var((*sizeFlag)(&o.Bytes), "size", "size of the weights")
	cmd.Flags().IntVar(&o.Versions, "versions", o.Versions, "number of versions")
	cmd.Flags().BoolVar(&follow, "follow", false, "be the process that follows")
	_ = cmd.Flags().MarkHidden("follow") // fails for unknown flags only
	return cmd
}

func printVersionsBench(o *output, r *bench.VersionsResult) {
	if r == nil {
		return // the process that follows
	}
	o.printf("%s of bf16, 1 %% of the elements change, %d versions\n\n", formatBytes(r.Bytes), r.Versions)
	t := newRows("", ">MEASURED", ">ASKED")
	t.add("bytes written", two(100*r.WrittenShare)+" %", "<= 3 %")
	t.add("bytes read", two(100*r.ReadShare)+" %", "<= 3 %")
	t.add("publish stops training, GB/s", two(r.Stall), ">= 40")
	t.add("from publish to complete, s", two(r.PublishSeconds), "")
	t.add("from publish to applied, s", two(r.UpdateSeconds), "")
	t.add("full save and load, s", two(r.FullSeconds), "")
	t.add("applied, of the full time", two(r.UpdateRatio), "<= 0.25")
	t.add("pause, s", strconv.FormatFloat(r.PauseSeconds, 'f', 3, 64), "<= 0.1")
	o.table(t)
}

func newBenchBlobCmd() *cobra.Command {
	o := bench.BlobOptions{Bytes: 1 << 30, Streams: []int{1, 8, 32}, Repeat: 3}
	low := lowest{"size": 1 << 20, "streams": 1, "repeat": 1}
	cmd := newCommand("bench-blob", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) (err error) {
		if err := low.check(cmd); err != nil {
			return err
		}
		if o.Store, err = openStore(cmd.Context(), args[0]); err != nil {
			return err
		}
		out := outputOf(cmd)
		o.Log = benchLog(out)
		r, err := bench.Blob(cmd.Context(), o)
		if err != nil {
			return err
		}
		return out.result(r, func() { printBlobBench(out, r) })
	})
	cmd.Flags().Var((*sizeFlag)(&o.Bytes), "size", "bytes to send and to receive")
	cmd.Flags().IntSliceVar(&o.Streams, "streams", o.Streams, "numbers of requests at the same time")
	cmd.Flags().IntVar(&o.Repeat, "repeat", o.Repeat, "number of rounds")
	return cmd
}

func printBlobBench(o *output, r *bench.BlobResult) {
	o.printf("%s at %s, best of %d, in GB/s; plain: %s\n\n", formatBytes(r.Bytes), r.Address, r.Repeat, r.Plain)
	t := newRows(">STREAMS", ">PLAIN PUT", ">CAIRN", ">PLAIN GET", ">CAIRN", ">PLAIN RANGES", ">CAIRN", ">PLAIN CORE-s/GB", ">CAIRN")
	for _, row := range r.Rows {
		t.add(strconv.Itoa(row.Streams), two(row.PlainPut), two(row.Put), two(row.PlainGet), two(row.Get), two(row.PlainRanges), two(row.Ranges),
			two(row.PlainCores), two(row.CoreSeconds))
	}
	t.add("best", two(r.BestPlainPut), two(r.BestPut), two(r.BestPlainGet), two(r.BestGet), two(r.BestPlainRanges), two(r.BestRanges),
		two(r.PlainCoreSeconds), two(r.CoreSeconds))
	o.table(t)
	o.printf("\ncairn, compared with the best of plain requests: upload %s, download %s, by ranges %s; %d requests, %d of them repeated\n",
		two(r.PutRatio), two(r.GetRatio), two(r.RangesRatio), r.Traffic.Requests, r.Traffic.Retries)
	printBlobCache(o, r.Cache)
}

func printBlobCache(o *output, r *bench.BlobCache) {
	o.printf("\n%s of this host, each of the whole object:\n\n", plural(r.Readers, "reader"))
	t := newRows("", ">ALL GB/s", ">FROM THE SERVICE", ">REQUESTS")
	add := func(name string, c *bench.CacheReads) {
		t.add(name, two(c.Rate), formatBytes(c.Received), strconv.FormatInt(c.Requests, 10))
	}
	add("without a cache", &r.Alone)
	add("with an empty cache", &r.Shared)
	add("with a full cache", &r.Warm)
	o.table(t)
}

func newBenchAsyncCmd() *cobra.Command {
	o := bench.AsyncOptions{Bytes: 4 << 30, Ranks: 1, Repeat: 3}
	cmd := benchCommand("async", lowest{"ranks": 1, "repeat": 1, "size": 1 << 20}, func(ctx context.Context, out *output) (*bench.AsyncResult, error) {
		var err error
		if o.Program, err = ownCommand(); err != nil {
			return nil, err
		}
		o.Log, o.Logger = benchLog(out), out.logger()
		return bench.Async(ctx, o)
	}, printAsyncBench)
	addFolderFlag(cmd, &o.Dir)
	cmd.Flags().Var((*sizeFlag)(&o.Bytes), "size", "size of the state")
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks")
	cmd.Flags().IntVar(&o.Repeat, "repeat", o.Repeat, "number of rounds")
	cmd.Flags().BoolVar(&o.Process, "process", false, "save in saver processes")
	cmd.Flags().Var((*sizeFlag)(&o.Ceiling), "ceiling", "the most staging memory of each rank (0: one and a half times its state)")
	return cmd
}

func printAsyncBench(o *output, r *bench.AsyncResult) {
	by := "goroutines"
	if r.Process {
		by = "saver processes"
	}
	o.printf("%s from %s by %s, %s, best of %d\n\n", formatBytes(r.Bytes), plural(r.Ranks, "rank"), by, plural(r.Threads, "thread"), r.Repeat)
	t := newRows("", ">FLOOR GB/s", ">CAIRN GB/s", ">RATIO")
	t.add("stall, against a copy", two(r.Memcpy), two(r.Stall), two(r.StallRatio))
	t.add("until durable, against a save", two(r.Save), two(r.Durable), two(r.DurableRatio))
	o.table(t)
	o.printf("\nfirst stall %s GB/s; staging memory %s of %s\n", two(r.FirstStall), formatBytes(r.PeakStaging), formatBytes(r.Ceiling))
}

func newBenchMemoryCmd() *cobra.Command {
	o := bench.MemoryOptions{Bytes: 1 << 30, Hosts: 2, Ranks: 4, Repeat: 3}
	low := lowest{"hosts": 2, "ranks": 2, "repeat": 1, "size": 1 << 20}
	cmd := benchCommand("memory", low, func(ctx context.Context, out *output) (*bench.MemoryResult, error) {
		o.Log, o.Logger = benchLog(out), out.logger()
		return bench.Memory(ctx, o)
	}, printMemoryBench)
	cmd.Flags().Var((*sizeFlag)(&o.Bytes), "size", "size of the state")
	cmd.Flags().IntVar(&o.Hosts, "hosts", o.Hosts, "number of hosts")
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks of all hosts")
	cmd.Flags().IntVar(&o.Repeat, "repeat", o.Repeat, "number of rounds")
	return cmd
}

func printMemoryBench(o *output, r *bench.MemoryResult) {
	o.printf("%s from %s of %s, %s, best of %d\n\n", formatBytes(r.Bytes), plural(r.Ranks, "rank"), plural(r.Hosts, "host"),
		plural(r.Sockets, "connection"), r.Repeat)
	t := newRows("", ">FLOOR GB/s", ">CAIRN GB/s", ">RATIO", ">ASKED")
	t.add("first copy, against new files", two(r.FloorCopyNew), two(r.FirstCopy), two(r.CopyNewRatio), "")
	t.add("copy, against memory that is there", two(r.FloorCopyThere), two(r.Copy), two(r.CopyThereRatio), ">= 0.7")
	t.add("load after a restart, against a copy", two(r.Memcpy), two(r.Load), two(r.LoadRatio), ">= 0.5")
	t.add("load from copies, against connections", two(r.FloorLoadCopies), two(r.LoadCopies), two(r.LoadCopiesRatio), ">= 0.7")
	o.table(t)
	o.printf("\nsave %s GB/s, save and copies %s GB/s; the first ones of a job %s and %s\n", two(r.Save), two(r.UntilCopied),
		two(r.FirstSave), two(r.FirstUntilCopied))
	o.printf("most memory %s, %s of the size\n", formatBytes(r.PeakMemory), two(r.MemoryRatio))
}
