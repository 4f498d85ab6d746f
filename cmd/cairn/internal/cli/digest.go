package cli

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// digestList is what 'cairn digest --json' prints.
type digestList struct {
	Items map[string]inspect.Digest `json:"items"`
	// Digest is inspect.Combine of the items.
	Digest string `json:"digest"`
}

func newDigestCmd() *cobra.Command {
	var selected, excluded []string
	cmd := &cobra.Command{
		Use:   "digest PATH [NAME...]",
		Short: "Print the SHA-256 of every tensor and object",
		Long: `Digest reads tensors and objects and prints the SHA-256 of their content: of a
tensor's contiguous little-endian bytes, however it was cut into chunks, and of an
object's encoding. Two checkpoints of the same state have the same
digests, however they are sharded. Every byte is verified on the way. Memory is
bounded, whatever the size of a tensor.

NAME is a name, or the beginning of names up to a dot. Without one, everything
is read. --select and --exclude take patterns (see 'cairn help patterns') and may
be given several times. Each has to match something.

With --json:

  items          an object with, for each name:
    kind         "tensor" or "object"
    dtype, shape of a tensor
    type, repr   of an object, in Python's words: int, float, str, bool,
                 NoneType, bytes, list, dict and so on; of repr the first
                 400 characters
    nbytes       bytes that were digested
    sha256       their digest
  digest         one digest for all that was read: the SHA-256 of the lines
                 "NAME" KIND DTYPE [SHAPE] SHA256, in the order of the names`,
		Example: `  cairn digest runs/step-1000
  cairn digest runs/step-1000 model.layers.0 step
  diff <(cairn digest a) <(cairn digest b)
  cairn digest runs/step-1000 --json | jq -r .digest`,
		Args:              wantArgs(1, -1),
		ValidArgsFunction: completeNames(-1),
		RunE:              func(cmd *cobra.Command, args []string) error { return runDigest(cmd, args, selected, excluded) },
	}
	addFilterFlags(cmd, &selected, &excluded)
	return cmd
}

func runDigest(cmd *cobra.Command, args, selected, excluded []string) error {
	filter, err := newFilter(selected, excluded)
	if err != nil {
		return err
	}
	return withMetadata(cmd.Context(), args[0], func(c *cairn.Checkpoint, md *meta.Metadata) error {
		entries, err := keepNames(args[0], md, args[1:], filter)
		if err != nil {
			return err
		}
		o := outputOf(cmd)
		bar := o.progress("digest", sumBytes(entries))
		defer bar.done()
		digests, err := inspect.Digests(cmd.Context(), c, entries, &inspect.DigestOptions{Progress: bar.add})
		bar.done()
		if err != nil {
			return err
		}
		v := digestList{Items: digests, Digest: inspect.Combine(digests)}
		return o.result(v, func() {
			for _, name := range slices.Sorted(maps.Keys(digests)) {
				o.printf("%s  %s\n", digests[name].SHA256, clean(name))
			}
		})
	})
}

func sumBytes(entries []*meta.Entry) int64 {
	var n int64
	for _, e := range entries {
		n += e.NumBytes()
	}
	return n
}
