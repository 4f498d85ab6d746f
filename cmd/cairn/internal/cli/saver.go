package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// The codes of errors about recipes. docs/saver.md lists them.
func init() {
	for code, err := range map[string]error{
		"recipe.unknown":    recipe.ErrUnknown,
		"recipe.syntax":     recipe.ErrSyntax,
		"recipe.variable":   recipe.ErrVariable,
		"recipe.incomplete": recipe.ErrIncomplete,
		"recipe.check":      view.ErrCheck,
	} {
		group.RegisterError(code, err)
	}
}

// newSaverCmd returns the command that a trainer starts as its saver process.
func newSaverCmd() *cobra.Command {
	cmd := newCommand("saver", wantArgs(0, 1), cobra.NoFileCompletions, func(*cobra.Command, []string) error {
		o := &saver.ServeOptions{OpenAs: openAs}
		if own, err := os.Executable(); err == nil { // otherwise the one in PATH
			o.Export = []string{own, "export"}
		}
		return saver.Run(o)
	})
	cmd.Hidden = true
	return cmd
}

// openAs opens the form of a checkpoint that a trainer asks for.
func openAs(ctx context.Context, store blob.Store, c storage.Checkpoint, r *saver.Recipe) (storage.Checkpoint, error) {
	o := view.Options{Recipe: r.Name, Reverse: r.Reverse, Set: r.Set}
	switch config := r.Config.(type) {
	case nil:
	case string:
		o.Config = config
	case map[string]any:
		o.ConfigValues = config
	default:
		err := fmt.Errorf("%w: the configuration of a model is a path or an object, not %v", storage.ErrOptions, config)
		return nil, errors.Join(err, c.Close())
	}
	v, err := view.OpenAs(ctx, store, c, o)
	if err != nil {
		return nil, err
	}
	if as, ok := v.(*view.Checkpoint); ok && r.Check {
		if err := as.Check(ctx); err != nil {
			return nil, errors.Join(err, v.Close())
		}
	}
	return v, nil
}
