package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/meta"
)

func completePaths(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
}

// completeNames returns a function that completes a checkpoint and then at most
// limit names in it, up to the next dot. A negative limit means no limit.
func completeNames(limit int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 || limit >= 0 && len(args) > limit {
			return completePaths(1)(cmd, args, word)
		}
		return namesIn(cmd, args[0], word)
	}
}

func choices(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

func completeFlag(cmd *cobra.Command, complete cobra.CompletionFunc, flags ...string) {
	for _, name := range flags {
		_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails for unknown flags only
	}
}

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
// the checkpoint given before it.
func completeFlagNames(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return namesIn(cmd, args[0], word)
}

// nextNames returns the completions of word: the sorted names that begin with it,
// cut after the next dot.
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

// shells are the shells that can complete command lines of cairn.
var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletionCmd() *cobra.Command {
	return newCommand("completion", wantArgs(1, 1), choices(shells...), func(cmd *cobra.Command, args []string) error {
		root, out := cmd.Root(), cmd.OutOrStdout()
		switch args[0] {
		case "bash":
			return root.GenBashCompletionV2(out, true)
		case "zsh":
			return root.GenZshCompletion(out)
		case "fish":
			return root.GenFishCompletion(out, true)
		case "powershell":
			return root.GenPowerShellCompletionWithDesc(out)
		}
		return usagef(cmd, "there is no script for %q: known are %s", args[0], strings.Join(shells, ", "))
	})
}
