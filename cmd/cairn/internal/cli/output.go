package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// output is where a command's results and remarks go, and in which form.
type output struct {
	out, err io.Writer
	json     bool
	quiet    bool
	// color says that stdout shows colours, errColor that stderr does.
	color, errColor bool
	// bars says that progress bars may be drawn on stderr.
	bars bool
	// width is that of the terminal that stdout is. Zero: stdout is not a
	// terminal, its width is unknown, or lines may have any length.
	width int
	// wide says that lines may have any length.
	wide bool
}

func addOutputFlags(f *pflag.FlagSet) {
	f.Bool("json", false, "print the result as JSON")
	f.BoolP("quiet", "q", false, "print results only: no progress, no remarks (see 'cairn help output')")
	f.Bool("wide", false, "print each row of a table on one line, whatever the width of the terminal")
	f.Bool("no-color", false, "print without colours (so does a NO_COLOR in the environment)")
}

// outputOf returns the output of a command as its flags say.
func outputOf(cmd *cobra.Command) *output {
	flag := func(name string) bool {
		v, err := cmd.Flags().GetBool(name)
		return err == nil && v
	}
	o := &output{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), json: flag("json"), quiet: flag("quiet"), wide: flag("wide")}
	plain := flag("no-color") || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	o.color, o.errColor = !plain && isTerminal(o.out), !plain && isTerminal(o.err)
	o.bars = !o.json && !o.quiet && isTerminal(o.err) && os.Getenv("TERM") != "dumb"
	if !o.wide {
		o.width = terminalWidth(o.out)
	}
	return o
}

// encode writes v as indented JSON.
func (o *output) encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// result prints v as JSON if that is wanted, and calls human otherwise. The
// error is that of stdout.
func (o *output) result(v any, human func()) error {
	if o.json {
		return o.encode(o.out, v)
	}
	human()
	if s, ok := o.out.(*sink); ok {
		return s.err
	}
	return nil
}

// printf prints to stdout, which remembers what goes wrong.
func (o *output) printf(format string, args ...any) { fmt.Fprintf(o.out, format, args...) }

// remark prints to stdout unless only results are wanted.
func (o *output) remark(format string, args ...any) {
	if !o.quiet {
		o.printf(format, args...)
	}
}

func (o *output) good(s string) string { return paint(o.color, "32", s) }
func (o *output) bold(s string) string { return paint(o.color, "1", s) }

// bad is for stderr.
func (o *output) bad(s string) string { return paint(o.errColor, "31", s) }

func paint(on bool, code, s string) string {
	if !on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// clean quotes text that comes from a checkpoint if it could disturb a
// terminal or a table.
func clean(s string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if !strings.ContainsFunc(s, odd) {
		return s
	}
	return strconv.Quote(s)
}

// oneLine joins the lines of a message.
func oneLine(s string) string {
	var parts []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, strings.ReplaceAll(line, "\t", "  "))
		}
	}
	return strings.Join(parts, "; ")
}
