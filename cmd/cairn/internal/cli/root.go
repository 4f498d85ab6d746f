// Package cli is the command line of cairn: one file for each command, and its help
// text in the folder help. It parses arguments and formats the results of the other
// packages. docs/cli.md describes output, exit codes and JSON; it is generated from
// the commands.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/alike"
)

// Main runs the command line args, without the program's name, and returns the
// exit code. Results go to stdout, everything else to stderr. When ctx ends, the
// command stops and cleans up. If stdout cannot be written, the exit code is not
// 0.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &sink{w: stdout}
	stderr = redacting(args, stderr)
	root := newRootCmd()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	cmd, err := unknownCommand(root, args)
	if err == nil {
		cmd, err = root.ExecuteContextC(ctx)
	}
	if err == nil {
		err = out.err // of a text that cobra printed
	}
	if err == nil {
		return exitOK
	}
	o := outputOf(cmd)
	// Flags after an invalid one were not parsed.
	o.json = o.json || errors.Is(err, errUsage) && slices.Contains(args, "--json")
	return o.fail(ctx, cmd, err)
}

// redacting returns a writer to w that leaves out the secrets of args.
func redacting(args []string, w io.Writer) io.Writer {
	r := secretsOf(args)
	if r == nil {
		return w
	}
	return &redactor{w, r}
}

// secretsOf returns a replacer that removes the users and the queries of the URLs in args,
// which may hold secrets. It returns nil if there are none.
func secretsOf(args []string) *strings.Replacer {
	var secrets []string
	for _, a := range args {
		_, a, found := strings.Cut(a, "://")
		if !found {
			continue
		}
		before, query, _ := strings.Cut(a, "?")
		user, _, _ := strings.Cut(before, "/")
		if i := strings.LastIndexByte(user, '@'); i >= 0 {
			secrets = append(secrets, user[:i+1], "")
		}
		if query != "" {
			secrets = append(secrets, "?"+query, "", query, "…")
		}
	}
	if len(secrets) == 0 {
		return nil
	}
	return strings.NewReplacer(secrets...)
}

// redactor replaces secrets in the lines that are written to it. Each Write must
// have whole lines; messages are written so.
type redactor struct {
	w io.Writer
	r *strings.Replacer
}

func (r *redactor) Write(p []byte) (int, error) {
	if _, err := r.r.WriteString(r.w, string(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func newRootCmd() *cobra.Command {
	root := newCommand("cairn", cobra.ArbitraryArgs, nil, runRoot) // runGroup checks the arguments
	root.SilenceErrors, root.SilenceUsage, root.SuggestionsMinimumDistance = true, true, 2
	root.CompletionOptions.DisableDefaultCmd = true // newCompletionCmd replaces it
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(printUsage)
	addOutputFlags(root.PersistentFlags())
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		cmd.SetContext(blob.WithLogger(cmd.Context(), outputOf(cmd).storeLogger()))
	}
	root.Flags().Bool("version", false, "print the version, as 'cairn version' does")
	addGroup(root, "Look at checkpoints", newInspectCmd(), newLsCmd(), newCatCmd(), newStatsCmd(), newDigestCmd(), newVerifyCmd(),
		newDiffCmd(), newPlotCmd(), newTableCmd(), newWebCmd())
	addGroup(root, "Change and copy checkpoints", newConvertCmd(), newMergeCmd(), newRecipesCmd(), newCpCmd(), newFlattenCmd(),
		newRepairCmd(), newCleanCmd())
	addGroup(root, "Look after the checkpoints of a run", newRunsCmd(), newLogCmd(), newLatestCmd(), newTagCmd(), newSettingsCmd(),
		newPruneCmd(), newRmCmd(), newRewindCmd(), newSyncCmd(), newExportCmd())
	addGroup(root, "Start jobs", newLaunchCmd(), newMemoryCmd(), newSaverCmd())
	addGroup(root, groupSetUp, newDemoCmd(), newDoctorCmd(), newBenchCmd(), newVersionCmd(), newCompletionCmd(), newManCmd())
	root.AddCommand(newTopics()...)
	root.SetHelpCommand(newHelpCmd())
	root.SetHelpCommandGroupID(groupSetUp)
	root.InitDefaultHelpCmd()
	return root
}

// groupSetUp is the group to which help belongs, too.
const groupSetUp = "Set up and try out"

// addGroup adds commands that the help lists together, below a title.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}

func runRoot(cmd *cobra.Command, args []string) error {
	if v, err := cmd.Flags().GetBool("version"); err == nil && v && len(args) == 0 {
		return runVersion(cmd, nil)
	}
	return runGroup(cmd, args)
}

// runGroup reports the call of a group of commands without a command or with an
// unknown one.
func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return noCommand(cmd, args[0])
}

func noCommand(group *cobra.Command, name string) error {
	err := usagef(group, "there is no command %q", name)
	if near := group.SuggestionsFor(name); len(near) > 0 {
		return withHint(err, fmt.Sprintf("did you mean '%s'?", strings.Join(near, "' or '")))
	}
	if group.Name() == "recipes" {
		return withHint(err, fmt.Sprintf("'%s show %s' prints a recipe", group.CommandPath(), quoteArg(name)))
	}
	return err
}

// flagError returns the error of a flag, with the flags that were meant if there is no such flag.
func flagError(cmd *cobra.Command, err error) error {
	usage := usagef(cmd, "%v", err)
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usage
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags = append(flags, f.Name)
		}
	})
	name := cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName()) // -json
	near := alike.Nearest(name, slices.Values(flags))
	if len(near) == 0 {
		return usage
	}
	return withHint(usage, fmt.Sprintf("did you mean '--%s'?", strings.Join(near, "' or '--")))
}

// unknownCommand returns an error, and the group it is about, if args name an
// unknown command. It runs before flags are parsed: otherwise the error would be
// about an unknown flag.
func unknownCommand(root *cobra.Command, args []string) (*cobra.Command, error) {
	group, rest, err := root.Find(args)
	if err != nil || !group.HasSubCommands() {
		return group, nil
	}
	for _, a := range rest {
		name, isFlag := strings.CutPrefix(a, "-")
		switch {
		case !isFlag && a != cobra.ShellCompRequestCmd && a != cobra.ShellCompNoDescRequestCmd:
			return group, noCommand(group, a)
		case !isFlag, !knownFlag(group, name):
			return group, nil // cobra reports it
		}
	}
	return group, nil
}

// knownFlag reports whether a command has the flag "-"+name, which takes no
// value.
func knownFlag(cmd *cobra.Command, name string) bool {
	cmd.InitDefaultHelpFlag()
	long, isLong := strings.CutPrefix(name, "-")
	for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.InheritedFlags(), cmd.PersistentFlags()} {
		if isLong && set.Lookup(long) != nil || len(name) == 1 && set.ShorthandLookup(name) != nil {
			return true
		}
	}
	return false
}

// wantArgs returns a check for the number of arguments. No argument may be
// empty. A negative high means no limit.
func wantArgs(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return usagef(cmd, "too few arguments: usage is '%s'", cmd.UseLine())
		case high >= 0 && len(args) > high:
			return usagef(cmd, "too many arguments: usage is '%s'", cmd.UseLine())
		}
		if i := slices.Index(args, ""); i >= 0 {
			return usagef(cmd, "argument %d is empty: usage is '%s'", i+1, cmd.UseLine())
		}
		return nil
	}
}

// programName returns how to run this program again: its name if that is found on
// the PATH, the path by which it was called, or the go command that built it for
// one run.
func programName() string {
	exe, err := os.Executable()
	if err != nil || len(os.Args) == 0 {
		return "cairn"
	}
	return nameOf(os.Args[0], exe, exec.LookPath)
}

// ownCommand returns the command line that runs this program with arguments.
func ownCommand(args ...string) ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start another process: %w", err)
	}
	return append([]string{exe}, args...), nil
}

// inCache matches the paths of programs that "go run" caches.
var inCache = regexp.MustCompile(`/[0-9a-f]{2}/[0-9a-f]{64}-d/[^/]+$`)

// nameOf is programName for a program with the file exe that was called as arg0.
func nameOf(arg0, exe string, look func(string) (string, error)) string {
	base := filepath.Base(arg0)
	byName := !strings.ContainsRune(arg0, filepath.Separator) // also by the script of the Python package
	if found, err := look(base); err == nil && (byName || sameFile(found, exe)) {
		return base
	}
	if slash := filepath.ToSlash(exe); strings.Contains(slash, "/go-build") || inCache.MatchString(slash) {
		return "go run ./cmd/cairn"
	}
	if byName {
		return quoteArg(exe)
	}
	return quoteArg(arg0)
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
