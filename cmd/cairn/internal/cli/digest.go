package cli

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// digestList is the output of 'cairn digest --json'.
type digestList struct {
	Path   string                    `json:"path"`
	SaveID string                    `json:"save_id"`
	Items  map[string]inspect.Digest `json:"items"`
	// Digest is inspect.Combine of the items.
	Digest string `json:"digest"`
}

func newDigestCmd() *cobra.Command {
	var f nameFlags
	var job jobFlags
	var r recipeFlags
	cmd := newCommand("digest", wantArgs(1, -1), completeNames(-1), func(cmd *cobra.Command, args []string) error {
		return job.run(cmd, args, func(g group.Group) error { return runDigest(cmd, r.context(cmd), args, &f, g) })
	})
	f.add(cmd)
	r.add(cmd, "read")
	job.add(cmd)
	return baseFlag(cmd)
}

func runDigest(cmd *cobra.Command, ctx context.Context, args []string, f *nameFlags, g group.Group) error {
	return f.withEntries(ctx, args, func(c *cairn.Checkpoint, _ *meta.Metadata, entries []*meta.Entry) error {
		o := outputOf(cmd)
		var digests map[string]inspect.Digest
		err := o.withPlanned(barLabel("digest", g), func(planned, moved func(int64)) (err error) {
			digests, err = inspect.DigestsTogether(cmd.Context(), g, c, entries, planned, moved)
			return err
		})
		if err != nil {
			return err
		}
		v := digestList{Path: blob.Redact(args[0]), SaveID: c.Info().SaveID, Items: digests, Digest: inspect.Combine(digests)}
		return o.result(v, func() {
			for _, name := range slices.Sorted(maps.Keys(digests)) {
				o.printf("%s  %s\n", digests[name].SHA256, clean(name))
			}
		})
	})
}
