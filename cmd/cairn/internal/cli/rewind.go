package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/run"
)

// rewindResult is the output of 'cairn rewind --json'.
type rewindResult struct {
	Path   string   `json:"path"`
	Name   string   `json:"name"`
	Step   *int64   `json:"step"`
	SaveID string   `json:"save_id,omitempty"`
	Left   []string `json:"left"`
}

func newRewindCmd() *cobra.Command {
	var f settingsFlags
	cmd := newCommand("rewind", wantArgs(2, 2), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return runRewind(cmd, &f, args[0], args[1])
	})
	cmd.Flags().StringVar(&f.remote, "remote", "", "`address` of the remote run, which is rewound too")
	return cmd
}

func runRewind(cmd *cobra.Command, f *settingsFlags, address, to string) error {
	ctx, o := cache.Without(cmd.Context()), outputOf(cmd)
	r, _, err := f.openRun(cmd, address)
	if err != nil {
		return err
	}
	// A path, as 'cairn latest' prints it and a shell completes it, names the checkpoint too.
	if dir, name := splitRun(to); dir != "" && dir != "." && shownPath(dir) == shownPath(address) {
		to = name
	}
	c, err := r.Rewind(ctx, to)
	if errors.Is(err, cairn.ErrNotFound) {
		return withHint(err, fmt.Sprintf("'cairn log %s' lists its checkpoints", quoteArg(blob.Redact(address))))
	}
	if err != nil {
		return err
	}
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return err
	}

	res := rewindResult{Path: blob.Redact(address), Name: c.Name, Step: c.Step, SaveID: c.SaveID, Left: leftNames(all)}
	return o.result(res, func() {
		o.remark("%s goes on from %s\n", clean(res.Path), clean(res.Name))
		if len(res.Left) > 0 {
			o.remark("%s left behind: 'cairn log %s' shows the lines\n", plural(len(res.Left), "checkpoint"), quoteArg(res.Path))
		}
	})
}

// leftNames returns the names of the checkpoints on lines that were left.
func leftNames(all []run.Checkpoint) []string {
	out := []string{}
	for i := range all {
		if all[i].Left {
			out = append(out, all[i].Name)
		}
	}
	return out
}
