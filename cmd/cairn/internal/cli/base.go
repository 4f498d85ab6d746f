package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

type baseKey struct{}

// baseFlag adds the flag for the checkpoint on which others are based: the version on which a chain
// of delta versions is based, or the model of an adapter. All checkpoints that the command opens
// use it.
func baseFlag(cmd *cobra.Command) *cobra.Command {
	base := cmd.Flags().String("base", "", "`path` of version 0 of a delta version, or of the model of a LoRA adapter")
	completeFlag(cmd, completePaths(1), "base")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cmd.SetContext(context.WithValue(cmd.Context(), baseKey{}, *base))
		return run(cmd, args)
	}
	return cmd
}

// baseOf returns the base that the flags of a command give, or "".
func baseOf(ctx context.Context) string {
	base, _ := ctx.Value(baseKey{}).(string)
	return base
}

// baseHint returns advice on a damaged delta version if a base is given, and otherwise "".
func baseHint(ctx context.Context, address string) string {
	base := baseOf(ctx)
	if base == "" || formatOf(ctx, checkpointAddress(ctx, address)) != formats.Slime {
		return ""
	}
	return fmt.Sprintf("%s may be the wrong base: --base names the checkpoint that the training began with; if it is the right one, the version has to come from another copy", clean(blob.Redact(base)))
}

// openOptions returns the options with which a command opens checkpoints.
func openOptions(ctx context.Context) *formats.Options { return &formats.Options{Base: baseOf(ctx)} }
