package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn/tensor"
)

func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND or TOPIC]",
		Short: "Explain a command or a topic",
		Long:  "Help explains a command, or one of the topics that 'cairn help' lists.",
		Example: `  cairn help
  cairn help bench io
  cairn help exit-codes`,
		ValidArgsFunction: completeHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef(cmd.Root(), "there is no command or topic %q", strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
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
	printCommands(w, "Commands:", cmd, isCommand, "")
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

// newTopics returns the help topics: commands that only have a help text.
func newTopics() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   "exit-codes",
			Short: "What the exit codes mean",
			Long:  "Every command ends with one of these codes:\n\n" + exitTable() + "\n" + exitNotes,
		},
		{
			Use:   "output",
			Short: "What is printed where",
			Long: `Results go to stdout, progress and error messages to stderr. If stdout cannot be
written, the exit code is 1. Progress bars and colours appear on a terminal only.

Tables have one line for each row. On a terminal that is too narrow for that, long
names get a line of their own, with the other columns below. If these are still
too wide, each row becomes a record: its name, and below it every other column
that has a value, with its heading. No column is left out and no name is
shortened. --wide prints one line for each row on a terminal too.

An output file (--npy, --raw, --output) appears once it is complete and replaces
the file that is there, also behind a symbolic link. A device or a FIFO is written
into. A file of the checkpoint itself is never replaced.

--json prints the result of a command as one JSON object. The help of the command
names its fields. They keep their names and meanings; new ones may be added. The
commands 'help' and 'completion' print text even so.

--quiet leaves out progress and remarks, so that only results are printed:

  ls, inspect      the tables, without the line of totals and the hint at more
  diff, stats      the tables and histograms, without the line of totals
  digest, version  the same as without it
  cat              the same, and nothing if it writes a file
  convert, merge   objects that were left out, or the table of --dry-run
  verify           the problems, and nothing if there are none
  repair           what was done, without the notes
  clean            the table of files, without the line of totals
  bench            the figures, without what is being measured
  run              what the ranks print, without the rank that failed
  table, demo      nothing: the exit code is the result`,
		},
		{
			Use:   "formats",
			Short: "The formats of checkpoints",
			Long: `Every command that reads detects the format of a checkpoint. 'cairn convert' and
'cairn merge' write all of these:

  native    cairn's own: a directory with cairn.json
  torchdcp  PyTorch Distributed Checkpoint: .metadata and *.distcp files, also
            with a __0.metadata for each rank
  hf        safetensors: one file, several with an index, or the pieces that
            PyTorch's HuggingFaceStorageWriter leaves
  torch     one file of torch.save: .pt, .pth, .bin or .ckpt
  hyper     hyper_parallel: .metadata, _rank0_.safetensors and bytes files

--to also takes cairn for native, dcp for torchdcp, safetensors or huggingface for
hf, pt or pth for torch, and hyper_parallel for hyper.

hf and torch hold whole tensors, except for the distributed form of hf. hf holds
only tensors. torch, torchdcp and hyper also hold plain objects: numbers, strings,
containers, dates and the like. native holds all objects. Pickles are read as
data: nothing that they name is imported or run.`,
		},
		{
			Use:   "dtypes",
			Short: "The types of elements",
			Long: "DTYPE is one of these, in any case, also with torch. in front of it:\n\n" + dtypeTable() +
				"\nhf and hyper hold those that every version of safetensors has: all but\n" +
				"float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu, complex64 and complex128.",
		},
		{
			Use:   "paths",
			Short: "How checkpoints are named",
			Long: `PATH is where a checkpoint is:

  runs/step-1000              a directory
  model.safetensors           a file by itself, of safetensors or torch.save
  file:///data/runs/step-1000 the same as a URL
  mem://name                  memory of this process, for tests

PATH can also be a file in such a directory: the one that describes the checkpoint
(cairn.json, .metadata, an index.json), or a data file (__0_0.distcp). The format
is detected; see 'cairn help formats'.

Names within a checkpoint are the keys of the nested state, joined by dots:
model.layers.0.attn.qkv. NAME and PREFIX are such a name, or the beginning of
names up to a dot, which stands for everything below it: model.layers.1 does not
stand for model.layers.10.`,
		},
		{
			Use:   "patterns",
			Short: "How names are selected",
			Long: `The flags --select, --exclude and --match, and the GLOB of --dtype and
--placement, take patterns of names:

  model.layers.0  that name, or everything below it, as NAME and PREFIX do
  model.*         a star stands for any characters, dots too
  layer.?.w       a question mark stands for one character
  layer.[0-3]*    one character of a set; [!0-3] is one that is not in it
  \*              a backslash takes the next character as it is

A pattern with any of these characters has to match the whole name: *.weight
matches model.weight and not model.weight.scale. A pattern that matches nothing is
an error. Quote patterns, so that the shell leaves them alone.`,
		},
	}
}

const exitNotes = `'cairn run' ends with the exit code of the rank that failed first. Like other
launchers, it ends with 124 if its time is over, 126 if the program cannot be run,
127 if the program is not found, and 141 if the reader of its output is gone. The
kinds of these are rank, timeout, not-executable, not-found and reader; the kind
is signal if a signal to cairn itself ended the job.

Code 1 is also the code of 'cairn diff' and of the flag --fail-on-nan of 'cairn
stats', if they find something or cannot look at everything.

Errors go to stderr, with a hint of what to do next. With --json they are one
object there:

  error   what went wrong
  kind    the short name from the table
  code    the exit code
  hint    what to do next, if there is something`

// dtypeTable prints the element types and their short names.
func dtypeTable() string {
	var b strings.Builder
	for _, d := range tensor.DTypes() {
		b.WriteString(strings.TrimRight(fmt.Sprintf("  %-15s  %s", d, strings.Join(d.Aliases(), ", ")), " ") + "\n")
	}
	return b.String()
}

// exitTable prints the exit codes in order.
func exitTable() string {
	sorted := slices.SortedFunc(slices.Values(exits), func(a, b exit) int { return cmp.Compare(a.code, b.code) })
	var b strings.Builder
	for _, e := range sorted {
		fmt.Fprintf(&b, "  %3d  %-11s  %s\n", e.code, e.name, e.meaning)
	}
	return b.String()
}
