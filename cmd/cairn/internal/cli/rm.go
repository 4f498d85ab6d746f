package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// removeResult is what 'cairn rm --json' prints.
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
	cmd.Flags().BoolVarP(&opts.DryRun, "dry-run", "n", false, "show what would be removed, and remove nothing")
	cmd.Flags().BoolVar(&opts.Force, "force", false, "also remove the newest complete checkpoint of a run, and damaged ones")
	return cmd
}

func runRm(cmd *cobra.Command, addresses []string, opts run.RemoveOptions) error {
	ctx, o := cache.Without(cmd.Context()), outputOf(cmd)
	dirs := []string{} // in the order of the arguments
	names := map[string][]string{}
	for _, a := range addresses {
		dir, name, err := splitCheckpoint(ctx, a)
		if err != nil {
			return err
		}
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		if !slices.Contains(names[dir], name) {
			names[dir] = append(names[dir], name)
		}
	}
	remove := func(dryRun bool, moved func(int64)) ([]run.Pruned, error) {
		out, errs := []run.Pruned{}, []error{}
		opts.DryRun, opts.Removed = dryRun, func(p *run.Pruned) { moved(p.Bytes) }
		for _, dir := range dirs {
			r, err := run.Open(ctx, dir, "")
			var list []run.Pruned
			if err == nil {
				list, err = r.Remove(ctx, names[dir], &opts)
			}
			out, errs = append(out, list...), append(errs, err)
		}
		return out, errors.Join(errs...)
	}
	res := &removeResult{DryRun: opts.DryRun}
	// All are checked before the first one is removed.
	list, err := remove(true, func(int64) {})
	if err != nil {
		return withHint(err, rmHint(ctx, addresses[0], err))
	}
	total := int64(0)
	for _, p := range list {
		total += p.Bytes
	}
	if !res.DryRun {
		err = o.withProgress("rm", total, func(moved func(int64)) (err error) {
			list, err = remove(false, moved)
			return err
		})
	}
	for i := range list {
		list[i].Path = blob.Redact(list[i].Path)
		if p := &list[i]; p.Outcome == run.Removed || p.Outcome == run.WouldRemove {
			res.Count++
			res.Bytes += p.Bytes
		}
	}
	res.Removed = list
	if outErr := o.result(res, func() { printRemoved(o, res) }); outErr != nil {
		return outErr
	}
	return withHint(err, rmHint(ctx, addresses[0], err))
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
}

func rmHint(ctx context.Context, address string, err error) string {
	switch {
	case errors.Is(err, run.ErrNewest):
		return "a job goes on from it: --force removes it even so"
	case errors.Is(err, storage.ErrUnderWay):
		return "wait until the save is over"
	case errors.Is(err, storage.ErrInUse):
		return "the same command removes it once no process reads it"
	case errors.Is(err, run.ErrReferred):
		return "remove the checkpoints that refer to it first, or together with it"
	case errors.Is(err, storage.ErrIncomplete):
		return fmt.Sprintf("'cairn clean %s' removes what saves that did not finish have left", quoteArg(blob.Redact(address)))
	case errors.Is(err, storage.ErrCorrupt):
		return "--force removes a damaged checkpoint whose list of files can be read; 'cairn repair' may rebuild the list"
	case errors.Is(err, storage.ErrNotFound):
		return openHint(ctx, address, err)
	}
	return ""
}
