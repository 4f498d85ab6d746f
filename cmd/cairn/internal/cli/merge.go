package cli

import "github.com/spf13/cobra"

func newMergeCmd() *cobra.Command {
	f := &conversionFlags{memory: 512 << 20, merge: true}
	cmd := &cobra.Command{
		Use:   "merge SRC DST",
		Short: "Make whole tensors of a sharded checkpoint",
		Long: `Merge writes a checkpoint anew with every tensor in one piece, by one rank: for
tools that know nothing of shards, or to load it on one machine. It is convert
for this case: it streams, goes on after an interruption, and DST appears in one
step when it is complete. See 'cairn help convert' for rules and for the fields
of --json.

Without --to the new checkpoint has the format of the old one, unless DST has the
suffix of a file: .pt, .pth, .bin and .ckpt are of torch, .safetensors is of hf.`,
		Example: `  cairn merge runs/step-1000 merged
  cairn merge runs/step-1000 model.safetensors --select 'model.*' --dtype bfloat16
  cairn merge dcp-checkpoint model.pt --dry-run`,
		Args:              wantArgs(2, 2),
		ValidArgsFunction: completeConversion,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args[0], args[1])
		},
	}
	f.add(cmd)
	return cmd
}
