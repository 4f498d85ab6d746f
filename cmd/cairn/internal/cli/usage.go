package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// printUsage prints how a command is called: what follows its long text in its
// help.
func printUsage(cmd *cobra.Command) error {
	w := cmd.OutOrStderr()
	_, err := fmt.Fprintf(w, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	printCommands(w, "Commands:", cmd, isCommand, "")
	printFlags(w, "Flags:", cmd.LocalFlags())
	printFlags(w, "Flags of every command:", cmd.InheritedFlags())
	printCommands(w, "Topics:", cmd, (*cobra.Command).IsAdditionalHelpTopicCommand, "cairn help ")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n'%s COMMAND --help' explains a command.\n", cmd.CommandPath())
	}
	return err
}

// isCommand reports whether a command is to be listed: cobra does not count its
// own help as one.
func isCommand(c *cobra.Command) bool { return c.IsAvailableCommand() || c.Name() == "help" }

// printCommands lists the commands below cmd that keep wants.
func printCommands(w io.Writer, title string, cmd *cobra.Command, keep func(*cobra.Command) bool, prefix string) {
	t := &rows{right: make([]bool, 2)}
	for _, c := range cmd.Commands() {
		if keep(c) {
			t.add(prefix+c.Name(), c.Short)
		}
	}
	if len(t.cells) > 0 {
		fmt.Fprintf(w, "\n%s\n", title)
		t.print(w, "  ", 0)
	}
}

func printFlags(w io.Writer, title string, flags *pflag.FlagSet) {
	if flags.HasAvailableFlags() {
		fmt.Fprintf(w, "\n%s\n%s", title, flags.FlagUsages())
	}
}
