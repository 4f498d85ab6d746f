package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/meta"
)

// completePath completes a first argument that is a checkpoint, and no others.
func completePath(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// completeNames returns a function that completes a checkpoint and then at most
// limit names in it, up to the next dot. A negative limit means no limit.
func completeNames(limit int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return completePath(cmd, args, word)
		}
		if limit >= 0 && len(args) > limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return namesIn(cmd, args[0], word)
	}
}

// namesIn completes a name in the checkpoint at a path.
func namesIn(cmd *cobra.Command, path, word string) ([]string, cobra.ShellCompDirective) {
	var found []string
	err := withPart(cmd.Context(), path, func(_ *cairn.Checkpoint, md *meta.Metadata) error {
		found = nextNames(md.Names(), word)
		return nil
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if slices.ContainsFunc(found, func(n string) bool { return strings.HasSuffix(n, ".") }) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return found, directive
}

// completeFlagNames completes the value of a flag that is a pattern of names in
// the checkpoint that was given before it.
func completeFlagNames(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return namesIn(cmd, args[0], word)
}

// nextNames returns what word can become: the names that begin with it, cut
// behind the next dot. Names are sorted.
func nextNames(names []string, word string) []string {
	var out []string
	for _, n := range names {
		rest, ok := strings.CutPrefix(n, word)
		if !ok {
			continue
		}
		if i := strings.IndexByte(rest, '.'); i >= 0 {
			n = n[:len(word)+i+1]
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
