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
	cmd := newCommand("digest", wantArgs(1, -1), completeNames(-1), func(cmd *cobra.Command, args []string) error {
		return runDigest(cmd, args, selected, excluded)
	})
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
		digests, err := inspect.Digests(cmd.Context(), c, entries, bar.add)
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
