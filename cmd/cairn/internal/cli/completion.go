package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// shells are those that can complete command lines of cairn.
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
