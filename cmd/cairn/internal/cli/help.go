package cli

import (
	"cmp"
	"embed"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn/tensor"
)

//go:embed help/*.txt
var helpTexts embed.FS

// newCommand returns a command. The file help/NAME.txt has its usage, summary,
// description and examples. Cobra calls complete for the arguments in a shell.
func newCommand(name string, args cobra.PositionalArgs, complete cobra.CompletionFunc, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	text, err := helpTexts.ReadFile("help/" + name + ".txt")
	if err != nil {
		panic(err) // TestCommandsAreExplained creates all commands
	}
	use, rest, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n")
	short, rest, _ := strings.Cut(rest, "\n\n")
	long, examples, _ := strings.Cut(rest, "\n\nExamples:\n")
	return &cobra.Command{Use: use, Short: short, Long: long, Example: examples, Args: args, ValidArgsFunction: complete, RunE: run}
}

func newHelpCmd() *cobra.Command {
	return newCommand("help", nil, completeHelp, func(cmd *cobra.Command, args []string) error {
		about, rest, err := cmd.Root().Find(args)
		if err != nil || len(rest) > 0 {
			return usagef(cmd.Root(), "there is no command or topic %q", strings.Join(args, " "))
		}
		about.InitDefaultHelpFlag()
		return about.Help()
	})
}

func completeHelp(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	about, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, c := range about.Commands() {
		if !c.Hidden && strings.HasPrefix(c.Name(), word) {
			out = append(out, cobra.CompletionWithDesc(c.Name(), c.Short))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// printUsage prints the part of a command's help after its long text.
func printUsage(cmd *cobra.Command) error {
	w := cmd.OutOrStderr()
	_, err := fmt.Fprintf(w, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, g := range cmd.Groups() {
		printCommands(w, g.Title+":", cmd, func(c *cobra.Command) bool { return isCommand(c) && c.GroupID == g.ID }, "")
	}
	printCommands(w, "Commands:", cmd, func(c *cobra.Command) bool { return isCommand(c) && c.GroupID == "" }, "")
	printFlags(w, "Flags:", cmd.LocalFlags())
	printFlags(w, "Flags of every command:", cmd.InheritedFlags())
	printCommands(w, "Topics:", cmd, (*cobra.Command).IsAdditionalHelpTopicCommand, "cairn help ")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n'%s COMMAND --help' explains a command.\n", cmd.CommandPath())
	}
	return err
}

// isCommand reports whether to list a command. Cobra does not count its own help.
func isCommand(c *cobra.Command) bool { return c.IsAvailableCommand() || c.Name() == "help" }

// printCommands lists the commands below cmd for which keep returns true.
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

// newTopics returns the help topics: commands that only have a help text. TABLE in a
// text stands for a table of this program.
func newTopics() []*cobra.Command {
	tables := map[string]func() string{"exit-codes": exitTable, "dtypes": dtypeTable}
	var out []*cobra.Command
	for _, name := range []string{"exit-codes", "output", "formats", "dtypes", "paths", "patterns", "policies", "jobs"} {
		cmd := newCommand(name, nil, nil, nil)
		if table := tables[name]; table != nil {
			cmd.Long = strings.Replace(cmd.Long, "TABLE\n", table(), 1)
		}
		out = append(out, cmd)
	}
	return out
}

func dtypeTable() string {
	var b strings.Builder
	for _, d := range tensor.DTypes() {
		b.WriteString(strings.TrimRight(fmt.Sprintf("  %-15s  %s", d, strings.Join(d.Aliases(), ", ")), " ") + "\n")
	}
	return b.String()
}

func exitTable() string {
	sorted := slices.SortedFunc(slices.Values(exits), func(a, b exit) int { return cmp.Compare(a.code, b.code) })
	var b strings.Builder
	for _, e := range sorted {
		fmt.Fprintf(&b, "  %3d  %-11s  %s\n", e.code, e.name, e.meaning)
	}
	return b.String()
}
