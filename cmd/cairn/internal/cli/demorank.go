package cli

import (
	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob/all"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/demo"
)

// demoRankName is the command that is one rank of 'cairn demo --procs'.
const demoRankName = "demo-rank"

func newDemoRankCmd() *cobra.Command {
	return &cobra.Command{
		Use:    demoRankName + " PATH TASK",
		Short:  "Play one rank of a demo with processes",
		Hidden: true,
		Long: `Demo-rank is what 'cairn demo' starts as a process for each rank. TASK is what the
demo wants it to do, and what it prints is for the demo to read.`,
		Example:           `  cairn demo --procs 4`,
		Args:              wantArgs(2, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := all.Open(args[0])
			if err != nil {
				return err
			}
			return demo.RunRank(cmd.Context(), store, args[1], cmd.OutOrStdout())
		},
	}
}
