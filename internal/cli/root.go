// Package cli is the command line of cairn: one file a command. It parses
// arguments and formats what the other packages say, and knows nothing that
// they do not. What a command prints, its exit codes and its JSON are described
// in docs/cli.md, which is generated from the commands themselves.
package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
)

// Main runs the command line args, without the program's name, and returns the
// exit code. Results go to stdout, everything else to stderr. When ctx ends, the
// command stops what it does and cleans up.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCmd()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	return outputOf(cmd).fail(ctx, cmd, err)
}

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:     "cairn",
		Short:   "Look after checkpoints of sharded training state",
		Version: cairn.Version,
		Long: `cairn looks after checkpoints of sharded training state: it lists, inspects,
verifies and repairs them, without Python, without a GPU and in bounded memory.

A checkpoint is a folder, or a place in any other store; see 'cairn help paths'.
To see what cairn does, run 'cairn demo'.`,
		Example: `  cairn demo
  cairn inspect runs/step-1000
  cairn verify runs/step-1000 && echo whole`,
		Args:          cobra.ArbitraryArgs, // runGroup says it better
		RunE:          runGroup,
		SilenceErrors: true,
		SilenceUsage:  true,
		// The usage line names the commands instead.
		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usagef(cmd, "%v", err) })
	addOutputFlags(root.PersistentFlags())
	root.AddCommand(
		newDemoCmd(),
		newInspectCmd(),
		newLsCmd(),
		newDigestCmd(),
		newVerifyCmd(),
		newRepairCmd(),
		newTableCmd(),
		newBenchCmd(),
		newVersionCmd(),
	)
	root.AddCommand(newTopics()...)
	root.SetHelpCommand(newHelpCmd())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Args, c.RunE = cobra.ArbitraryArgs, runGroup
	}
	return root
}

// runGroup answers a call of a command that only has others below it, without
// one of them or with one that does not exist.
func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := usagef(cmd, "there is no command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return withHint(err, fmt.Sprintf("did you mean '%s'?", strings.Join(near, "' or '")))
	}
	return err
}

// wantArgs returns a check for the number of arguments. A negative max is none.
func wantArgs(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return usagef(cmd, "too few arguments: it is '%s'", cmd.UseLine())
		case high >= 0 && len(args) > high:
			return usagef(cmd, "too many arguments: it is '%s'", cmd.UseLine())
		}
		return nil
	}
}
