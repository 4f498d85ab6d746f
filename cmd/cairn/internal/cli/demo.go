package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/demo"
)

type demoFlags struct {
	dir              string
	size             sizeFlag
	ranks, loadRanks int
	procs            int
	keep             bool
}

func newDemoCmd() *cobra.Command {
	f := demoFlags{size: 64 << 20}
	cmd := newCommand("demo", wantArgs(0, 0), cobra.NoFileCompletions, func(cmd *cobra.Command, _ []string) error {
		return runDemo(cmd, f)
	})
	fl := cmd.Flags()
	fl.StringVar(&f.dir, "dir", "cairn-demo", "save in this directory (`PATH`), which is created if necessary")
	fl.Var(&f.size, "size", "approximate size of the state")
	fl.IntVar(&f.ranks, "ranks", 8, "ranks that save")
	fl.IntVar(&f.loadRanks, "load-ranks", 3, "ranks that load")
	fl.IntVar(&f.procs, "procs", 0, "save from `N` processes instead, some of which are killed")
	fl.BoolVar(&f.keep, "keep", true, "leave the checkpoint there; --keep=false removes it at the end")
	_ = cmd.MarkFlagDirname("dir") // fails for unknown flags only
	return cmd
}

func runDemo(cmd *cobra.Command, f demoFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	store, err := blob.OpenAddress(cmd.Context(), f.dir)
	if err != nil {
		return err
	}
	missing := firstMissing(f.dir)
	o := outputOf(cmd)
	w := &demoWatcher{o: o, dir: f.dir}
	c := demo.Config{Store: store, Bytes: int64(f.size), Ranks: f.ranks, LoadRanks: f.loadRanks, Watch: w, Logger: o.logger()}
	if o.verbose {
		c.Stderr = o.err
	}
	rep, err := f.play(cmd.Context(), c)
	w.bar.done()
	if !f.keep && rep != nil {
		err = errors.Join(err, cleanUp(context.WithoutCancel(cmd.Context()), store, rep, f.dir, missing))
	}
	if rep != nil && o.json {
		err = errors.Join(err, o.encode(o.out, rep))
	}
	if err != nil {
		return withHint(err, demoHint(f.dir, err))
	}
	w.goodbye(f)
	return nil
}

func (f *demoFlags) play(ctx context.Context, c demo.Config) (*demo.Report, error) {
	if f.inMemory() {
		return demo.Run(ctx, c)
	}
	var err error
	rank := []string{"demo-rank", f.dir}
	if c.Stderr != nil {
		rank = append(rank, "--verbose")
	}
	if c.Command, err = ownCommand(rank...); err != nil {
		return nil, err
	}
	if c.Saver, err = ownCommand("saver"); err != nil {
		return nil, err
	}
	if f.procs == 0 {
		return demo.Run(ctx, c)
	}
	c.Ranks = f.procs
	return demo.RunProcs(ctx, c)
}

func (f *demoFlags) check(cmd *cobra.Command) error {
	fi, err := os.Stat(f.dir)
	switch {
	case f.dir == "":
		return usagef(cmd, "--dir is empty")
	case err == nil && !fi.IsDir(), errors.Is(err, syscall.ENOTDIR):
		return usagef(cmd, "--dir %s is, or is in, a file: the demo saves in a directory", quoteArg(f.dir))
	case f.size < demo.MinBytes:
		return usagef(cmd, "--size is too small: at least %s", formatBytes(demo.MinBytes))
	case min(f.ranks, f.loadRanks) < 1 || max(f.ranks, f.loadRanks) > demo.MaxRanks:
		return usagef(cmd, "--ranks and --load-ranks must be 1 to %d", demo.MaxRanks)
	case cmd.Flags().Changed("procs") && cmd.Flags().Changed("ranks"):
		return usagef(cmd, "--procs and --ranks say the same: give one")
	case cmd.Flags().Changed("procs") && (f.procs < 2 || max(f.procs, f.loadRanks) > demo.MaxProcs):
		return usagef(cmd, "--procs must be 2 to %d, and --load-ranks with it at most that", demo.MaxProcs)
	case f.procs > 0 && f.inMemory():
		return usagef(cmd, "--dir %s is memory of one process: --procs needs a directory", quoteArg(f.dir))
	}
	return nil
}

// inMemory reports whether the demo saves in the memory of this process.
func (f *demoFlags) inMemory() bool { return blob.Scheme(f.dir) == "mem" }

func demoHint(dir string, err error) string {
	switch {
	case errors.Is(err, demo.ErrTaken):
		return "choose another place with --dir"
	case errors.Is(err, cairn.ErrIncomplete):
		return fmt.Sprintf("choose another place with --dir, or remove %s if you do not need it", quoteArg(dir))
	}
	return ""
}

// firstMissing returns the uppermost directory of a path that does not exist, or
// "" if all exist or dir is an address.
func firstMissing(dir string) string {
	if strings.Contains(dir, "://") {
		return ""
	}
	missing := ""
	for p := filepath.Clean(dir); ; p = filepath.Dir(p) {
		if _, err := os.Lstat(p); err == nil || p == filepath.Dir(p) {
			return missing
		}
		missing = p
	}
}

// cleanUp removes the checkpoint and the directories that were created for it.
func cleanUp(ctx context.Context, s blob.Store, rep *demo.Report, dir, made string) error {
	if rep.Save != nil {
		if err := removeCheckpoint(ctx, s); err != nil {
			return err
		}
	}
	if made == "" {
		return nil
	}
	for p := filepath.Clean(dir); ; p = filepath.Dir(p) {
		// A folder that was not created, or that another program uses, stays.
		if err := os.Remove(p); err != nil || p == made {
			return nil
		}
	}
}

func removeCheckpoint(ctx context.Context, s blob.Store) error {
	c, err := cairn.Open(ctx, s)
	if err != nil {
		return err
	}
	files := c.Files()
	if err := errors.Join(c.Close(), s.Remove(ctx, recordName)); err != nil {
		return err
	}
	for _, f := range files {
		if err := s.Remove(ctx, f.Name); err != nil {
			return err
		}
	}
	return nil
}

// demoWatcher prints the progress of the demo.
type demoWatcher struct {
	o     *output
	dir   string
	begun bool
	bar   *progress
}

var _ demo.Watcher = (*demoWatcher)(nil)

func (w *demoWatcher) Begin(phase string, bytes int64) {
	if !w.begun {
		printStory(w.o, "%s in %s\n\n", w.o.bold("cairn demo"), clean(w.dir))
	}
	w.begun = true
	w.bar.done()
	w.bar = w.o.progress(phase, bytes)
}

func (w *demoWatcher) Moved(bytes int64) { w.bar.add(bytes) }

func (w *demoWatcher) End(step string, r *demo.Report) {
	w.bar.done()
	switch step {
	case "save":
		w.line("state", "%s, %s: %d layers of width %d, %s", plural(r.State.Tensors, "tensor"), plural(r.State.Objects, "object"),
			r.State.Layers, r.State.Width, formatBytes(r.State.NumBytes))
		w.line("save", "%s on a %s mesh: %s in %s, %s", ranksOf(r, r.Save.Ranks), formatMesh(r.Save.Mesh),
			formatBytes(r.Save.Bytes), plural(r.Save.Files, "data file"), formatSpeed(r.Save.Speed))
	case "verify":
		w.line("verify", "%s in %s with the index, every byte: %s", plural(r.Check.Chunks, "chunk"), plural(r.Check.Files, "file"),
			formatSpeed(r.Check.Speed))
	case "load":
		w.loaded(r)
	case "crash":
		c := r.Crash[len(r.Crash)-1]
		w.line("crash", "%-33s %s", c.At+":", foundWhole(c.Survivor))
	case "kill":
		w.killed(&r.Kills[len(r.Kills)-1])
	case "background":
		w.savedInBackground(r.Background)
	case "overwrite":
		if r.Procs {
			w.line("meet", "%s once more, under the same name and at the same place", ranksOf(r, r.Overwrite.Ranks))
		}
		w.line("overwrite", "step %d: %s in %s, %s", r.Overwrite.Step, formatBytes(r.Overwrite.Bytes),
			plural(r.Overwrite.Files, "data file"), formatSpeed(r.Overwrite.Speed))
		w.line("digest", "%s", r.Digest)
	}
}

// ranksOf prints a number of ranks or processes.
func ranksOf(r *demo.Report, n int) string {
	if !r.Procs {
		return plural(n, "rank")
	}
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// killed prints the killed rank, the time and errors of the survivors, and the
// checkpoint that was found.
func (w *demoWatcher) killed(k *demo.Kill) {
	w.line("kill", "rank %d, %-29s %s", k.Rank, k.At+":", foundWhole(k.Survivor))
	printStory(w.o, "%13s%s knew within %s:\n", "", plural(k.Survivors, "survivor"), formatSeconds(k.Known))
	for _, e := range k.Errors {
		printStory(w.o, "%13s%s\n", "", clean(e))
	}
}

// savedInBackground prints how long training stood still and the checkpoint that the
// savers completed.
func (w *demoWatcher) savedInBackground(b *demo.Background) {
	if b.LeftOut != "" {
		printStory(w.o, "- %-10s left out: %s\n", "background", clean(b.LeftOut))
		return
	}
	w.line("background", "%s with saver processes: %s during a save", plural(b.Ranks, "trainer"), plural(b.Trained, "training step"))
	w.line("kill", "all trainers, step %d staged: new checkpoint whole, every byte, no process left", b.Step)
	printStory(w.o, "%13straining stood still for %s, the save took %s\n", "", formatSeconds(b.Stall), formatSeconds(b.Seconds))
}

func foundWhole(survivor string) string {
	if survivor == "new" {
		return "new checkpoint whole"
	}
	return "old checkpoint whole, same digest"
}

func (w *demoWatcher) loaded(r *demo.Report) {
	l := r.Load
	w.line("load", "%s, resharded: needed %s, %s", ranksOf(r, l.Ranks), formatBytes(l.Needed), formatSpeed(l.Speed))
	if l.Read > l.Needed {
		printStory(w.o, "%13sread %s: narrow columns of small matrices lie in shared tiles\n", "", formatBytes(l.Read))
	}
	w.line("compare", "%s on all ranks, every byte as it was saved", formatBytes(l.Compared))
}

func (w *demoWatcher) line(what, format string, args ...any) {
	printStory(w.o, "%s %-10s %s\n", w.o.good("✓"), what, fmt.Sprintf(format, args...))
}

// printStory prints a remark unless JSON is wanted.
func printStory(o *output, format string, args ...any) {
	if !o.json {
		o.remark(format, args...)
	}
}

func (w *demoWatcher) goodbye(f demoFlags) {
	o := w.o
	if o.json || o.quiet {
		return
	}
	o.printf("\n%s\n", o.good("All as promised."))
	if !f.keep || f.inMemory() {
		return
	}
	cairn, dir := programName(), quoteArg(f.dir)
	o.printf("\nLook at it:\n")
	t := newPlainRows(2)
	t.add(cairn+" inspect "+dir, "the checkpoint as a whole")
	t.add(cairn+" ls "+dir+" model.layers.0", "names, dtypes, shapes")
	t.add(cairn+" inspect "+dir+" model.layers.0.attn.qkv", "where each chunk lies")
	t.add(cairn+" verify "+dir, "check every byte")
	t.add(cairn+" digest "+dir+" model", "SHA-256 of each tensor")
	t.add(cairn+" table "+dir+" -o index.parquet", "the index for SQL")
	t.print(o.out, "  ", 0)
}

func formatSpeed(s demo.Speed) string {
	return formatSeconds(s.Seconds) + ", " + formatRate(s.PerSecond())
}

func formatMesh(mesh []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(mesh), " ", "×"), "[]")
}

// newDemoRankCmd returns the command that runs one rank of 'cairn demo --procs'.
func newDemoRankCmd() *cobra.Command {
	cmd := newCommand("demo-rank", wantArgs(2, 2), cobra.NoFileCompletions, func(cmd *cobra.Command, args []string) error {
		store, err := cairn.OpenStore(args[0]) // which saver processes can open too
		if err != nil {
			return err
		}
		return demo.RunRank(cmd.Context(), store, args[1], cmd.OutOrStdout(), outputOf(cmd).logger())
	})
	cmd.Hidden = true
	return cmd
}
