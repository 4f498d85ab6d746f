package cli

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/transfer"
)

// syncResult is what 'cairn sync --json' prints.
type syncResult struct {
	Source  string            `json:"source"`
	Target  string            `json:"target"`
	DryRun  bool              `json:"dry_run"`
	Folders []transfer.Synced `json:"folders"`
	Seconds float64           `json:"seconds"`
	copyTraffic
}

func newSyncCmd() *cobra.Command {
	var f copyFlags
	var dryRun bool
	cmd := newCommand("sync", wantArgs(2, 2), completePaths(2), func(cmd *cobra.Command, args []string) error {
		return f.sync(cmd, args[0], args[1], dryRun)
	})
	f.addTo(cmd)
	cmd.Flags().BoolVarP(&dryRun, "dry-run", "n", false, "show what would be copied, and copy nothing")
	return cmd
}

func (f *copyFlags) sync(cmd *cobra.Command, src, dst string, dryRun bool) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	opts, err := f.options(cmd)
	if err != nil {
		return err
	}
	if err := apart(src, dst); err != nil {
		return withHint(err, "give the second RUN another path")
	}
	from, err := openStore(ctx, src)
	if err != nil {
		return err
	}
	to, err := blob.OpenAddress(cache.Without(ctx), dst)
	if err != nil {
		return err
	}
	start, read, written := time.Now(), blob.Since(from), blob.Since(to)
	var bar *progress
	defer func() { bar.done() }()
	all, err := transfer.Sync(ctx, from, to, &transfer.SyncOptions{DryRun: dryRun, Options: func(folder string) *transfer.Options {
		bar.done()
		bar = nil
		copied := *opts
		copied.Planned = func(total int64) { bar = o.progress(folder, total) }
		copied.Progress = func(n int64) { bar.add(n) }
		return &copied
	}})
	bar.done()
	bar = nil
	if all == nil && err != nil {
		return err
	}
	r := &syncResult{blob.Redact(src), blob.Redact(dst), dryRun, all, time.Since(start).Seconds(), copyTraffic{read(), written()}}
	if outErr := o.result(r, func() { printSynced(o, r) }); outErr != nil {
		return outErr
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s: %w", blob.Redact(src), cairn.ErrNotFound)
		return withHint(err, "RUN is the folder of a run, with a folder for each checkpoint; 'cairn cp' copies one checkpoint")
	}
	return withHint(err, "the same command goes on from there")
}

func printSynced(o *output, r *syncResult) {
	t := newRows("FOLDER", ">STEP", "STATE", ">COPIED")
	copied := 0
	for _, s := range r.Folders {
		step, size := "", ""
		if s.Step != nil {
			step = strconv.FormatInt(*s.Step, 10)
		}
		if s.Copy != nil {
			size = formatBytes(s.Copy.Bytes - s.Copy.KeptBytes)
			copied++
		}
		t.add(clean(filepath.ToSlash(s.Folder)), step, s.State, size)
	}
	if len(r.Folders) > 0 {
		o.table(t)
	}
	for _, s := range r.Folders {
		if s.Problem != "" {
			o.warn("%s: %s", clean(s.Folder), clean(oneLine(s.Problem)))
		}
	}
	what := plural(copied, "checkpoint") + " copied"
	if r.DryRun {
		what = "nothing was copied"
	}
	o.remark("%s: %s (%s)\n", clean(r.Target), what, formatSeconds(r.Seconds))
	r.copyTraffic.print(o, r.Source, r.Target)
}
