package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/all"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// repairResult is what 'cairn repair --json' prints.
type repairResult struct {
	Path     string            `json:"path"`
	SaveID   string            `json:"save_id"`
	Rebuilt  bool              `json:"rebuilt"`
	DryRun   bool              `json:"dry_run"`
	Files    int               `json:"files"`
	Tensors  int64             `json:"tensors"`
	Objects  int64             `json:"objects"`
	NumBytes int64             `json:"nbytes"`
	Others   map[string]string `json:"others"`
}

func newRepairCmd() *cobra.Command {
	var opts native.RepairOptions
	cmd := &cobra.Command{
		Use:   "repair PATH",
		Short: "Rebuild a lost record or index from the data files",
		Long: `Repair rebuilds the commit record and the index of a checkpoint from its data
files, which describe themselves. It does nothing where record and index are
whole, never touches a data file, and writes only if all data files of a save are
there. Of several saves it takes the newest complete one.

The new checksums are computed from the bytes as they are now: repair cannot
tell, and cannot undo, damage in the data files. Where there still is a readable
index, run 'cairn verify' before --force replaces it.

With --json:

  path                     as it was given
  save_id                  the save that the checkpoint is of
  rebuilt                  whether record and index were written; with dry_run,
                           whether they would have been
  dry_run                  whether --dry-run was given
  files, tensors, objects, nbytes
                           what the checkpoint holds
  others                   saves that were not taken, each with the reason`,
		Example: `  cairn repair --dry-run runs/step-1000
  cairn repair runs/step-1000
  cairn repair runs/step-1000 --save 20261115t101500-5d2c81f0`,
		Args:              wantArgs(1, 1),
		ValidArgsFunction: completePath,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runRepair(cmd, args[0], opts)
		},
	}
	cmd.Flags().BoolVarP(&opts.DryRun, "dry-run", "n", false, "say what would be done and write nothing")
	cmd.Flags().StringVar(&opts.SaveID, "save", "", "rebuild the save of this `id`")
	cmd.Flags().BoolVar(&opts.Force, "force", false, "rebuild also where record and index can be read")
	return cmd
}

func runRepair(cmd *cobra.Command, path string, opts native.RepairOptions) error {
	store, err := all.Open(path)
	if err != nil {
		return withHint(err, placeHint(path))
	}
	o := outputOf(cmd)
	bar := o.progress("repair", dataBytes(cmd.Context(), store, opts.SaveID))
	defer bar.done()
	opts.Progress = bar.add
	rep, err := native.Repair(cmd.Context(), store, &opts)
	bar.done()
	if err != nil {
		return withHint(fmt.Errorf("repair %s: %w", path, err), repairHint(path, err))
	}
	r := repairResult{path, rep.SaveID, rep.Rebuilt, rep.DryRun, rep.Files, rep.Tensors, rep.Values, rep.Bytes, rep.Others}
	return o.result(r, func() { o.repaired(&r) })
}

// dataBytes returns the size of the data files of one or all saves, or zero
// where it cannot be told.
func dataBytes(ctx context.Context, s blob.Store, saveID string) int64 {
	var n int64
	for info, err := range s.List(ctx, saveID) {
		if err != nil {
			return 0
		}
		if strings.HasSuffix(info.Name, ".safetensors") {
			n += info.Size
		}
	}
	return n
}

// repairHint says what to do where nothing can be repaired.
func repairHint(path string, err error) string {
	switch {
	case errors.Is(err, cairn.ErrIncomplete):
		return "without the missing files it cannot be rebuilt; an older checkpoint is the way back"
	case errors.Is(err, cairn.ErrNotFound):
		return placeHint(path)
	}
	return ""
}

func (o *output) repaired(r *repairResult) {
	what := fmt.Sprintf("save %s: %s, %s, %s in %s", r.SaveID, plural(r.Tensors, "tensor"), plural(r.Objects, "object"),
		formatBytes(r.NumBytes), plural(r.Files, "file"))
	switch {
	case !r.Rebuilt:
		o.printf("%s: nothing to repair: record and index are whole (%s)\n", clean(r.Path), what)
	case r.DryRun:
		o.printf("%s: record and index can be rebuilt (%s); nothing was written\n", clean(r.Path), what)
	default:
		o.printf("%s: record and index %s (%s)\n", clean(r.Path), o.good("rebuilt"), what)
	}
	for _, id := range slices.Sorted(maps.Keys(r.Others)) {
		o.remark("not taken: save %s: %s\n", id, clean(r.Others[id]))
	}
}
