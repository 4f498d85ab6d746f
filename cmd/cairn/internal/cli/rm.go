package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// removeResult is the output of 'cairn rm --json'.
type removeResult struct {
	DryRun  bool         `json:"dry_run"`
	Removed []run.Pruned `json:"checkpoints"`
	Count   int          `json:"removed"`
	Bytes   int64        `json:"removed_bytes"`
}

func newRmCmd() *cobra.Command {
	var opts run.RemoveOptions
	cmd := newCommand("rm", wantArgs(1, -1), completePaths(maxPaths), func(cmd *cobra.Command, args []string) error {
		return runRm(cmd, args, opts)
	})
	cmd.Flags().BoolVarP(&opts.DryRun, "dry-run", "n", false, "only show the checkpoints that would be removed")
	cmd.Flags().BoolVar(&opts.Force, "force", false, "also remove the newest complete checkpoint of a run, and damaged ones")
	cmd.Flags().BoolVar(&opts.TaggedToo, "tagged-too", false, "also remove checkpoints with tags")
	return cmd
}

func runRm(cmd *cobra.Command, addresses []string, opts run.RemoveOptions) error {
	ctx, o := cache.Without(cmd.Context()), outputOf(cmd)
	b, err := groupByRun(ctx, addresses)
	if err != nil {
		return err
	}

	dryRun := opts.DryRun
	opts.DryRun = true // all are checked before the first one is removed
	list, err := b.remove(ctx, opts)
	if err != nil {
		return withHint(err, rmHint(ctx, addresses[0], err, opts.Force))
	}

	before := b.newest(ctx, opts.Force && !dryRun)
	if !dryRun {
		total := int64(0)
		for _, p := range list {
			total += p.Bytes
		}
		err = o.withProgress("rm", total, func(moved func(int64)) (err error) {
			opts.DryRun, opts.Removed = false, func(p *run.Pruned) { moved(p.Bytes) }
			list, err = b.remove(ctx, opts)
			return err
		})
	}

	res := &removeResult{DryRun: dryRun, Removed: list}
	for i := range list {
		list[i].Path = blob.Redact(list[i].Path)
		if p := &list[i]; p.Outcome == run.Removed || p.Outcome == run.WouldRemove {
			res.Count++
			res.Bytes += p.Bytes
		}
	}

	after := b.newest(ctx, opts.Force && !dryRun)
	if outErr := o.result(res, func() {
		printRemoved(o, res)
		printNewest(o, before, after)
	}); outErr != nil {
		return outErr
	}
	return withHint(err, rmHint(ctx, addresses[0], err, opts.Force))
}

// byRun are checkpoints of one or several runs.
type byRun struct {
	dirs  []string // the addresses of the runs, in the order of the arguments
	names map[string][]string
}

// groupByRun returns the checkpoints at some addresses, each once.
func groupByRun(ctx context.Context, addresses []string) (*byRun, error) {
	b := &byRun{names: map[string][]string{}}
	for _, a := range addresses {
		dir, name, err := splitCheckpoint(ctx, a)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(b.dirs, dir) {
			b.dirs = append(b.dirs, dir)
		}
		if !slices.Contains(b.names[dir], name) {
			b.names[dir] = append(b.names[dir], name)
		}
	}
	return b, nil
}

// remove removes the checkpoints of each run.
func (b *byRun) remove(ctx context.Context, opts run.RemoveOptions) ([]run.Pruned, error) {
	out, errs := []run.Pruned{}, []error{}
	for _, dir := range b.dirs {
		r, err := run.Open(ctx, dir, "")
		var list []run.Pruned
		if err == nil {
			list, err = r.Remove(ctx, b.names[dir], &opts)
		}
		out, errs = append(out, list...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// newest returns the newest complete checkpoint of each run, without runs that cannot be read, if
// it may be removed.
func (b *byRun) newest(ctx context.Context, removable bool) map[string]run.Checkpoint {
	out := map[string]run.Checkpoint{}
	if !removable {
		return out
	}
	for _, dir := range b.dirs {
		_, all, err := checkpointsOf(ctx, dir, "")
		if i := slices.IndexFunc(all, func(c run.Checkpoint) bool { return c.Head }); err == nil && i >= 0 {
			out[dir] = all[i]
		}
	}
	return out
}

// printNewest says from which checkpoint each run goes on, if it is not the one as before.
func printNewest(o *output, before, after map[string]run.Checkpoint) {
	for _, dir := range slices.Sorted(maps.Keys(after)) {
		was, is := before[dir], after[dir]
		if was.Name == is.Name {
			continue
		}
		shown := blob.Redact(dir)
		o.remark("%s goes on from %s now: 'cairn rewind %s CHECKPOINT' chooses another one\n", clean(shown), clean(is.Name), quoteArg(shown))
	}
}

func printRemoved(o *output, res *removeResult) {
	for _, p := range res.Removed {
		switch p.Outcome {
		case run.Removed:
			o.remark("%s: removed, %s\n", clean(shownPath(p.Path)), formatBytes(p.Bytes))
		case run.WouldRemove:
			o.printf("%s: would be removed, %s\n", clean(shownPath(p.Path)), formatBytes(p.Bytes))
		}
	}
	printStaying(o, res.Removed)
}

// printStaying names folders that were not removed with their checkpoints, because they have
// other files. It looks at folders of this host only.
func printStaying(o *output, list []run.Pruned) {
	var staying []string
	for _, p := range list {
		if path, local, err := file.LocalPath(p.Path); p.Outcome == run.Removed && local && err == nil {
			if _, err := os.Stat(path); err == nil {
				staying = append(staying, shownPath(path))
			}
		}
	}
	if len(staying) > 0 {
		o.remark("files that are not of a checkpoint stay in %s, such as %s\n", plural(len(staying), "folder"), clean(staying[0]))
	}
}

func rmHint(ctx context.Context, address string, err error, force bool) string {
	switch {
	case errors.Is(err, run.ErrNewest):
		return "a job goes on from it: --force removes it even so"
	case errors.Is(err, run.ErrTagged):
		return "--tagged-too removes checkpoints with tags; 'cairn tag CHECKPOINT --remove TAG' removes a tag"
	case errors.Is(err, storage.ErrUnderWay):
		return "wait until the save is over"
	case errors.Is(err, storage.ErrInUse):
		return "the same command removes it once no process reads it"
	case errors.Is(err, run.ErrReferred):
		return "remove the checkpoints that refer to it first, or together with it; or make them stand alone with 'cairn flatten'"
	case errors.Is(err, storage.ErrIncomplete):
		return fmt.Sprintf("'cairn clean %s' removes the files of unfinished saves", quoteArg(blob.Redact(address)))
	case errors.Is(err, storage.ErrCorrupt) && force:
		return fmt.Sprintf("its list of files cannot be read: if 'cairn repair %s' cannot rebuild it, make the checkpoints that refer to it stand alone with 'cairn flatten', and delete the folder", quoteArg(blob.Redact(address)))
	case errors.Is(err, storage.ErrCorrupt):
		return "--force removes a damaged checkpoint whose list of files can be read; 'cairn repair' may rebuild the list"
	case errors.Is(err, storage.ErrNotFound):
		return openHint(ctx, address, err)
	}
	return ""
}
