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
	rep, err := demo.Run(cmd.Context(), demo.Config{
		Store: store, Bytes: int64(f.size), Ranks: f.ranks, LoadRanks: f.loadRanks, Watch: w, Logger: o.logger(),
	})
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
	}
	return nil
}

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
		w.line("save", "%s on a %s mesh: %s in %s, %s", plural(r.Save.Ranks, "rank"), formatMesh(r.Save.Mesh),
			formatBytes(r.Save.Bytes), plural(r.Save.Files, "data file"), formatSpeed(r.Save.Speed))
	case "verify":
		w.line("verify", "%s in %s with the index, every byte: %s", plural(r.Check.Chunks, "chunk"), plural(r.Check.Files, "file"),
			formatSpeed(r.Check.Speed))
	case "load":
		w.loaded(r)
	case "crash":
		c := r.Crash[len(r.Crash)-1]
		found := "old checkpoint whole, same digest"
		if c.Survivor == "new" {
			found = "new checkpoint whole"
		}
		w.line("crash", "%-33s %s", c.At+":", found)
	case "overwrite":
		w.line("overwrite", "step %d: %s in %s, %s", r.Overwrite.Step, formatBytes(r.Overwrite.Bytes),
			plural(r.Overwrite.Files, "data file"), formatSpeed(r.Overwrite.Speed))
		w.line("digest", "%s", r.Digest)
	case "memory":
		m := r.Memory
		w.line("memory", "host %d of %d lost with its memory in step %d: the others go on from step %d, %d losses equal", m.Lost, m.Hosts, m.LostAt, m.Resumed, m.Last)
	}
}

func (w *demoWatcher) loaded(r *demo.Report) {
	l := r.Load
	w.line("load", "%s, resharded: needed %s, %s", plural(l.Ranks, "rank"), formatBytes(l.Needed), formatSpeed(l.Speed))
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
	if !f.keep || blob.Scheme(f.dir) == "mem" {
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
