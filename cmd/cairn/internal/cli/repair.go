package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// repairResult is the output of 'cairn repair --json'.
type repairResult struct {
	Path     string                  `json:"path"`
	SaveID   string                  `json:"save_id"`
	Rebuilt  bool                    `json:"rebuilt"`
	DryRun   bool                    `json:"dry_run"`
	Sums     string                  `json:"checksums"`
	Files    int                     `json:"files"`
	Tensors  int64                   `json:"tensors"`
	Objects  int64                   `json:"objects"`
	NumBytes int64                   `json:"bytes"`
	Problems []storage.VerifyProblem `json:"problems"`
	Others   map[string]string       `json:"others"`

	unindexed bool // for hf: it has no index
}

func newRepairCmd() *cobra.Command {
	var opts native.RepairOptions
	cmd := newCommand("repair", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return runRepair(cmd, args[0], opts)
	})
	cmd.Flags().BoolVarP(&opts.DryRun, "dry-run", "n", false, "only print the repairs that would be made")
	cmd.Flags().StringVar(&opts.SaveID, "save", "", "rebuild the save of this `id`")
	completeFlag(cmd, completeSaves, "save")
	cmd.Flags().BoolVar(&opts.Force, "force", false, "rebuild even if the record and the index can be read")
	return cmd
}

func runRepair(cmd *cobra.Command, path string, opts native.RepairOptions) error {
	store, err := openStore(cmd.Context(), path)
	if err != nil {
		return err
	}

	format, err := formats.Detect(cmd.Context(), store)
	switch {
	case err != nil && !errors.Is(err, cairn.ErrNotFound):
		return err
	case format == formats.HF:
		return repairIndex(cmd, store, path, opts)
	case format != "" && format != formats.Native:
		return withHint(fmt.Errorf("%s is in the format %s, which cannot be repaired: %w", path, format, errors.ErrUnsupported),
			"repair rebuilds the record of native checkpoints and the index of hf; other formats have to come from another copy")
	}

	size, err := dataBytes(cmd.Context(), store, path, opts)
	if err != nil {
		return err
	}

	o := outputOf(cmd)
	var rep *native.RepairReport
	err = o.withProgress("repair", size, func(moved func(int64)) (err error) {
		opts.Progress = moved
		rep, err = native.Repair(cmd.Context(), store, &opts)
		return err
	})
	if err != nil {
		if !strings.Contains(err.Error(), path) {
			err = fmt.Errorf("%s: %w", path, err)
		}
		return withHint(err, repairHint(cmd.Context(), path, opts.SaveID, err))
	}

	r := repairResult{path, rep.SaveID, rep.Rebuilt, rep.DryRun, "kept", rep.Files, rep.Tensors, rep.Values, rep.Bytes,
		append([]storage.VerifyProblem{}, rep.Problems...), rep.Others, false}
	if rep.Recomputed > 0 {
		r.Sums = "recomputed"
	}

	if err := o.result(r, func() { printRepaired(o, &r) }); err != nil || len(r.Problems) == 0 {
		return err
	}

	err = fmt.Errorf("%s: %s: %w", path, plural(len(r.Problems), "damaged data file"), cairn.ErrCorrupt)
	return withHint(err, "everything else in it can be read; damaged files have to come from another copy")
}

func repairIndex(cmd *cobra.Command, store blob.Store, path string, opts native.RepairOptions) error {
	if opts.SaveID != "" {
		return usagef(cmd, "--save is for native checkpoints: %s is in the format hf", path)
	}
	rep, err := hf.Repair(cmd.Context(), store, &hf.RepairOptions{DryRun: opts.DryRun, Force: opts.Force})
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
		return withHint(err, repairHint(cmd.Context(), path, "", err))
	}
	o := outputOf(cmd)
	r := repairResult{path, rep.SaveID, rep.Rebuilt, opts.DryRun, "none", rep.Files, rep.Tensors, 0, rep.Bytes,
		[]storage.VerifyProblem{}, map[string]string{}, !rep.Indexed}
	return o.result(r, func() { printRepaired(o, &r) })
}

// dataName matches data files: the save's id, the rank, a number.
var dataName = regexp.MustCompile(`^([0-9a-z-]+)-r\d{5,}-\d+\.safetensors$`)

// saves returns the size of the data files of each save in a store, by its id.
func saves(ctx context.Context, s blob.Store) (map[string]int64, error) {
	sizes := map[string]int64{}
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if m := dataName.FindStringSubmatch(info.Name); m != nil {
			sizes[m[1]] += info.Size
		}
	}
	return sizes, nil
}

// newest returns the ids of saves, the newest first.
func newest(saves map[string]int64) []string {
	return slices.SortedFunc(maps.Keys(saves), func(a, b string) int { return strings.Compare(b, a) })
}

// errNoSave reports an unknown save id.
var errNoSave = errors.New("there is no such save")

// dataBytes returns the largest number of bytes that a repair reads, zero if that is
// unknown. It refuses an unknown save id if there are other saves.
func dataBytes(ctx context.Context, s blob.Store, path string, opts native.RepairOptions) (int64, error) {
	sizes, err := saves(ctx, s)
	if opts.SaveID != "" && err == nil && len(sizes) > 0 && sizes[opts.SaveID] == 0 {
		ids := newest(sizes)
		err = fmt.Errorf("%s: %w: %q", path, errNoSave, opts.SaveID)
		return 0, withHint(err, "there are data files of "+strings.Join(ids[:min(len(ids), 5)], ", "))
	}
	if opts.Force { // it may read them twice
		return 0, nil
	}
	var n int64
	for id, size := range sizes {
		if opts.SaveID == "" || opts.SaveID == id {
			n += size
		}
	}
	return n, nil
}

func completeSaves(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	store, err := blob.OpenAddress(cache.Without(cmd.Context()), args[0])
	var sizes map[string]int64
	if err == nil {
		sizes, err = saves(cmd.Context(), store)
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return newest(sizes), cobra.ShellCompDirectiveNoFileComp
}

func repairHint(ctx context.Context, path, id string, err error) string {
	switch {
	case errors.Is(err, cairn.ErrExists):
		return fmt.Sprintf("'cairn repair --force --save %s %s' replaces it by that save", id, quoteArg(path))
	case errors.Is(err, cairn.ErrCorrupt):
		return "copy the damaged files from another copy of the checkpoint"
	case errors.Is(err, cairn.ErrIncomplete):
		return "without the missing files it cannot be rebuilt; an older checkpoint is the way back"
	case errors.Is(err, cairn.ErrNotFound):
		return placeHint(ctx, path)
	case errors.Is(err, errors.ErrUnsupported):
		return "it has to come from another copy; or make the checkpoints that refer to it stand alone with 'cairn flatten', and delete the folder"
	}
	return ""
}

func printRepaired(o *output, r *repairResult) {
	rebuilt, are, what := "record and index", "are", fmt.Sprintf("save %s: %s, %s, %s in %s", r.SaveID, plural(r.Tensors, "tensor"), plural(r.Objects, "object"),
		formatBytes(r.NumBytes), plural(r.Files, "data file"))
	if r.Sums == "none" {
		rebuilt, are, what = "the index", "is", fmt.Sprintf("%s, %s in %s", plural(r.Tensors, "tensor"), formatBytes(r.NumBytes), plural(r.Files, "data file"))
	}
	switch {
	case !r.Rebuilt && r.unindexed:
		o.printf("%s: nothing to repair: it has no index and needs no index (%s)\n", clean(r.Path), what)
	case !r.Rebuilt:
		o.printf("%s: nothing to repair: %s %s whole (%s)\n", clean(r.Path), rebuilt, are, what)
	case r.DryRun:
		o.printf("%s: %s can be rebuilt (%s); nothing was written\n", clean(r.Path), rebuilt, what)
	default:
		o.printf("%s: %s %s (%s)\n", clean(r.Path), rebuilt, o.good("rebuilt"), what)
	}
	if len(r.Problems) > 0 {
		printProblems(o, r.Problems)
	}
	if r.Rebuilt && !r.DryRun && r.Sums == "recomputed" {
		o.remark("checksums that could not be read were computed from the bytes as they are now: damage from before does not show there\n")
	}
	for _, id := range slices.Sorted(maps.Keys(r.Others)) {
		o.remark("not taken: save %s: %s\n", id, clean(r.Others[id]))
	}
}
