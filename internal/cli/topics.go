package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// newTopics returns the help topics: commands that only have a help text.
func newTopics() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   "exit-codes",
			Short: "What the exit codes mean",
			Long:  "Every command ends with one of these codes:\n\n" + exitTable() + "\n" + exitNotes,
		},
		{
			Use:   "paths",
			Short: "How checkpoints are named",
			Long: `PATH is where a checkpoint is:

  runs/step-1000              a directory, the one with cairn.json in it
  file:///data/runs/step-1000 the same as a URL
  mem://name                  memory of this process, for trying things out

Names within a checkpoint are the keys of the nested state, joined by dots:
model.layers.0.attn.qkv. Where a command takes the beginning of names, it takes
it up to a dot: model.layers.1 does not stand for model.layers.10.`,
		},
	}
}

const exitNotes = `A diagnosis goes to stderr, with a hint of what to do next. With --json it is an
object there:

  error   what went wrong
  kind    the short name from the table
  code    the exit code
  hint    what to do next, where there is something`

// exitTable prints the exit codes in their order.
func exitTable() string {
	sorted := slices.SortedFunc(slices.Values(exits), func(a, b exit) int { return cmp.Compare(a.code, b.code) })
	var b strings.Builder
	for _, e := range sorted {
		fmt.Fprintf(&b, "  %3d  %-11s  %s\n", e.code, e.name, e.meaning)
	}
	return b.String()
}
