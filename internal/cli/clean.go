package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// cleanResult is what 'cairn clean --json' prints.
type cleanResult struct {
	Path    string     `json:"path"`
	DryRun  bool       `json:"dry_run"`
	Bytes   int64      `json:"nbytes"`
	Removed []leftover `json:"removed"`
	Kept    []leftover `json:"kept"`
}

// leftover is a file that no checkpoint needs.
type leftover struct {
	Folder string `json:"folder"`
	publish.Leftover
	Saver string `json:"saver"`
}

// leftoverSummary counts the leftovers of a folder.
type leftoverSummary struct {
	Files int   `json:"files"`
	Bytes int64 `json:"nbytes"`
}

// cleanFlags are the flags of 'cairn clean'.
type cleanFlags struct {
	dryRun    bool
	olderThan time.Duration
}

func newCleanCmd() *cobra.Command {
	var f cleanFlags
	cmd := &cobra.Command{
		Use:   "clean PATH",
		Short: "Remove what killed saves have left",
		Long: `Clean removes the files that a save has left behind: a save that did not finish,
or that could not remove the checkpoint that it replaced. PATH is the folder of a
checkpoint, or of a run with a folder for each step. Clean never removes files
that a checkpoint needs, files of saves that still run, or files that cairn did
not write.

By default, clean removes files only if their save is certainly over: the process
that saved ran on this host and is dead. It keeps files of other hosts, of file
systems without locks and of unknown saves, unless --older-than gives an age and
they are at least that old.

With --json:

  path, dry_run   as they were given
  nbytes          the size of the files that were removed, or would be
  removed         a list of folder, name, bytes, time, save_id and saver, which is
                  "dead", "running" or "unknown"
  kept            a list of the files that stay, with the same fields`,
		Example: `  cairn clean runs --dry-run
  cairn clean runs/step-1000
  cairn clean runs --older-than 24h`,
		Args:              wantArgs(1, 1),
		ValidArgsFunction: completePath,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("older-than") && f.olderThan < 0 {
				return usagef(cmd, "--older-than must not be negative")
			}
			return runClean(cmd, args[0], f)
		},
	}
	cmd.Flags().BoolVarP(&f.dryRun, "dry-run", "n", false, "show what would be removed and remove nothing")
	cmd.Flags().DurationVar(&f.olderThan, "older-than", -1, "also remove leftovers of unknown saves of at least this `age`, such as 24h")
	cmd.Flags().Lookup("older-than").DefValue = ""
	return cmd
}

func runClean(cmd *cobra.Command, address string, f cleanFlags) error {
	path, local, err := localPath(address)
	if err != nil {
		return err
	}
	if !local {
		return usagef(cmd, "%s: only folders of the file system have leftovers", clean(address))
	}
	fi, err := os.Stat(path)
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("%w: it is a file; want the folder that it is in", cairn.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("clean %s: %w", path, err)
	}
	dirs, err := foldersOf(path)
	if err != nil {
		return err
	}
	r := cleanResult{Path: path, DryRun: f.dryRun, Removed: []leftover{}, Kept: []leftover{}}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, r.clean(cmd.Context(), dir, f))
	}
	o := outputOf(cmd)
	return errors.Join(o.result(r, func() { o.cleaned(&r) }), errors.Join(errs...))
}

// foldersOf returns a folder and those directly below it.
func foldersOf(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	out := []string{path}
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	return out, nil
}

// clean cleans one folder.
func (r *cleanResult) clean(ctx context.Context, dir string, f cleanFlags) error {
	s, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	var removed []publish.Leftover
	if !f.dryRun {
		removed, err = formats.Clean(ctx, s, f.olderThan)
	}
	left, leftErr := formats.Leftovers(ctx, s)
	for _, l := range left {
		if f.dryRun && formats.Removable(&l, f.olderThan) {
			removed = append(removed, l)
		} else {
			r.Kept = append(r.Kept, leftover{dir, l, l.Owner.String()})
		}
	}
	for _, l := range removed {
		r.Removed = append(r.Removed, leftover{dir, l, l.Owner.String()})
		r.Bytes += l.Size
	}
	if err == nil {
		err = leftErr
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func (o *output) cleaned(r *cleanResult) {
	t := newRows("FILE", ">SIZE", "SAVER", "")
	word := "removed"
	if r.DryRun {
		word = "would be removed"
	}
	for _, l := range r.Removed {
		t.add(clean(filepath.Join(l.Folder, l.Name)), formatBytes(l.Size), l.Saver, word)
	}
	for _, l := range r.Kept {
		t.add(clean(filepath.Join(l.Folder, l.Name)), formatBytes(l.Size), l.Saver, "kept")
	}
	if len(r.Removed)+len(r.Kept) > 0 {
		o.table(t)
	}
	o.printf("%s: %s %s, %s\n", clean(r.Path), plural(len(r.Removed), "file"), word, formatBytes(r.Bytes))
	for _, l := range r.Kept {
		if l.Owner == blob.OwnerUnknown {
			o.remark("it is unknown whether the saves of kept files are over: --older-than removes them by age\n")
			break
		}
	}
}

// leftoversAt counts the files that no checkpoint in a folder needs. It returns
// nil if it finds no such file. Files of running saves do not count.
func leftoversAt(ctx context.Context, address string) *leftoverSummary {
	path, local, err := localPath(address)
	if err != nil || !local {
		return nil
	}
	if fi, err := os.Stat(path); err != nil || !fi.IsDir() {
		return nil
	}
	s, err := file.Open(path, nil)
	if err != nil {
		return nil
	}
	left, _ := formats.Leftovers(ctx, s) // a remark is no reason to fail
	var out leftoverSummary
	for _, l := range left {
		if l.Owner != blob.OwnerAlive {
			out.Files++
			out.Bytes += l.Size
		}
	}
	if out.Files == 0 {
		return nil
	}
	return &out
}

// leftovers prints a remark about the files that no checkpoint in a folder needs.
func (o *output) leftovers(path string, l *leftoverSummary) {
	if l != nil {
		o.remark("%s, %s, left by saves that did not finish; 'cairn clean %s' removes files of saves that are certainly over\n",
			plural(l.Files, "file"), formatBytes(l.Bytes), quoteArg(path))
	}
}
