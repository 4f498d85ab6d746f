package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/meta"
)

// completePath completes the path of a checkpoint as the first argument, and no
// other arguments.
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
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the script that completes command lines in a shell",
		Long: `Completion prints a script for bash, zsh, fish or powershell. It completes
commands, flags, paths, and the names in a checkpoint. Load it when the shell
starts:

  bash        source <(cairn completion bash)   in ~/.bashrc
  zsh         source <(cairn completion zsh)    in ~/.zshrc, behind compinit
  fish        cairn completion fish | source    in config.fish
  powershell  cairn completion powershell | Out-String | Invoke-Expression

Bash needs the package bash-completion.`,
		Example: `  source <(cairn completion bash)
  cairn completion fish > ~/.config/fish/completions/cairn.fish`,
		Args:              wantArgs(1, 1),
		ValidArgsFunction: cobra.FixedCompletions(shells, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
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
		},
	}
}
