package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/transfer"
)

// syncResult is the output of 'cairn sync --json'.
type syncResult struct {
	Source  string            `json:"source"`
	Target  string            `json:"target"`
	DryRun  bool              `json:"dry_run"`
	Folders []transfer.Synced `json:"folders"`
	// Exports are those of a run that were not done.
	Exports []exportDone `json:"exports,omitempty"`
	Seconds float64      `json:"seconds"`
	copyTraffic
}

func newSyncCmd() *cobra.Command {
	var f copyFlags
	var dryRun bool
	var remote settingsFlags
	cmd := newCommand("sync", wantArgs(1, 2), completePaths(2), func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return f.upload(cmd, &remote, args[0], dryRun)
		}
		return f.sync(cmd, args[0], args[1], dryRun)
	})
	f.addTo(cmd)
	remote.addRemote(cmd)
	cmd.Flags().BoolVarP(&dryRun, "dry-run", "n", false, "only show the checkpoints that would be copied")
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
	if r, err := run.Open(ctx, src, dst); err == nil && !r.OwnsRemote(ctx) {
		return fmt.Errorf("nothing was copied: %w", r.Join(ctx)) // it names the ids
	}
	finish := f.measure(o, src, dst, from, to, dryRun)
	all, err := transfer.Sync(ctx, from, to, &transfer.SyncOptions{DryRun: dryRun, Options: finish.options(opts)})
	if err := finish.print(all, err); err != nil {
		return err
	}
	if len(all) == 0 {
		err = fmt.Errorf("%s: %w", blob.Redact(src), cairn.ErrNotFound)
		return withHint(err, "RUN is the folder of a run, with a folder for each checkpoint; 'cairn cp' copies one checkpoint")
	}
	return nil
}

// upload copies the checkpoints that the remote place of a run lacks.
func (f *copyFlags) upload(cmd *cobra.Command, remote *settingsFlags, address string, dryRun bool) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	opts, err := f.options(cmd)
	if err != nil {
		return err
	}
	r, s, err := remote.openRun(cmd, address)
	if err != nil {
		return err
	}
	x, err := (&exportFlags{settingsFlags: *remote, memory: exportMemory, dryRun: dryRun}).ofRun(ctx, r)
	if err != nil {
		return err
	}
	if r.Remote == nil && len(x.pending) > 0 {
		return x.run(cmd, address)
	}
	if r.Remote == nil {
		shown := quoteArg(r.String())
		return withHint(usagef(cmd, "%s has no remote run", r), fmt.Sprintf("give the address of the second RUN, or store it: 'cairn settings %s --remote URL'", shown))
	}
	finish := f.measure(o, address, s.Remote, r.Local.Store, r.Remote.Store, dryRun)
	all, err := r.Sync(ctx, &run.SyncOptions{KeepRemote: s.KeepRemote, DryRun: dryRun, Options: finish.options(opts)})
	if all != nil {
		finish.bar.done()
		done := &exportResult{}
		err = errors.Join(err, x.carryOutAll(cmd, done))
		finish.result.Exports = done.Exports
	}
	return finish.print(all, err)
}

// syncing is a sync under way: its progress bar, its time and its traffic.
type syncing struct {
	out           *output
	bar           *progress
	start         time.Time
	read, written func() *blob.Traffic
	result        *syncResult
}

func (f *copyFlags) measure(o *output, src, dst string, from, to blob.Store, dryRun bool) *syncing {
	return &syncing{out: o, start: time.Now(), read: blob.Since(from), written: blob.Since(to),
		result: &syncResult{Source: blob.Redact(src), Target: blob.Redact(dst), DryRun: dryRun}}
}

// options returns a function that begins a progress bar for each folder.
func (s *syncing) options(opts *transfer.Options) func(folder string) *transfer.Options {
	return func(folder string) *transfer.Options {
		s.bar.done()
		s.bar = nil
		copied := *opts
		copied.Planned = func(total int64) { s.bar = s.out.progress(folder, total) }
		copied.Progress = func(n int64) { s.bar.add(n) }
		return &copied
	}
}

// print prints the folders of a sync that ended with err, which it returns.
func (s *syncing) print(all []transfer.Synced, err error) error {
	s.bar.done()
	if all == nil && err != nil {
		return err
	}
	r := s.result
	r.Folders, r.Seconds, r.copyTraffic = all, time.Since(s.start).Seconds(), copyTraffic{s.read(), s.written()}
	if outErr := s.out.result(r, func() { printSynced(s.out, r) }); outErr != nil {
		return outErr
	}
	stopped := slices.ContainsFunc(all, func(f transfer.Synced) bool { return f.State == transfer.Failed || f.State == "" })
	if errors.Is(err, run.ErrConflict) && !stopped && !s.out.json {
		return fmt.Errorf("%s: %w", plural(conflicts(all), "checkpoint"), run.ErrConflict) // the lines above have the details
	}
	return withHint(err, "the same command goes on from there")
}

// conflicts counts the checkpoints with different saves on both sides.
func conflicts(all []transfer.Synced) (n int) {
	for _, f := range all {
		if f.State == transfer.Differs {
			n++
		}
	}
	return n
}

func printSynced(o *output, r *syncResult) {
	t := newRows("FOLDER", ">STEP", "STATE", ">COPIED")
	copied, lacking := 0, 0
	for _, s := range r.Folders {
		step, size := "", ""
		if s.Step != nil {
			step = strconv.FormatInt(*s.Step, 10)
		}
		if s.Copy != nil {
			size = formatBytes(s.Copy.Bytes - s.Copy.KeptBytes)
			copied++
		}
		if s.State == transfer.Lacking || s.State == transfer.Replacing {
			lacking++
		}
		t.add(clean(filepath.ToSlash(s.Folder)), step, s.State, size)
	}

	if len(r.Folders) > 0 {
		o.table(t)
	}

	for _, s := range r.Folders {
		if old := s.Replaces; old != nil {
			o.remark("%s: %s the save %s of %s\n", clean(s.Folder), map[bool]string{false: "has replaced", true: "would replace"}[r.DryRun], clean(old.SaveID), old.Time.UTC().Format(time.RFC3339))
		}
		if s.Problem != "" {
			o.warn("%s: %s", clean(s.Folder), clean(oneLine(s.Problem)))
		}
	}

	what := plural(copied, "checkpoint") + " copied"
	if r.DryRun {
		what = plural(lacking, "checkpoint") + " would be copied"
	}
	o.remark("%s: %s (%s)\n", clean(r.Target), what, formatSeconds(r.Seconds))
	r.copyTraffic.print(o, r.Source, r.Target)
}
