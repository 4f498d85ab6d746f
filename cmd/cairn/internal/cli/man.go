package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn"
)

// manResult is the output of 'cairn man --json'.
type manResult struct {
	Path  string   `json:"path"`
	Pages []string `json:"pages"`
}

func newManCmd() *cobra.Command {
	return newCommand("man", wantArgs(1, 1), completePaths(1), runMan)
}

func runMan(cmd *cobra.Command, args []string) error {
	if err := os.MkdirAll(args[0], 0o777); err != nil {
		return err
	}
	r := manResult{Path: args[0], Pages: []string{}}
	for name, text := range manPages(cmd.Root()) {
		path := filepath.Join(args[0], name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			return err
		}
		r.Pages = append(r.Pages, path)
	}
	slices.Sort(r.Pages)
	o := outputOf(cmd)
	return o.result(r, func() {
		o.remark("%s in %s\n", plural(len(r.Pages), "page"), clean(r.Path))
	})
}

// manPages returns the pages of all commands and topics, by the names of their files.
func manPages(root *cobra.Command) map[string]string {
	out := map[string]string{}
	var add func(c *cobra.Command)
	add = func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		c.InitDefaultHelpFlag()
		out[manName(c)+".1"] = manPage(c)
		for _, sub := range c.Commands() {
			add(sub)
		}
	}
	add(root)
	return out
}

// manName returns the name of the page of a command.
func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage returns the page of a command or topic, from the texts of its help.
func manPage(c *cobra.Command) string {
	var p roff
	p.line(`.TH "%s" "1" "" "cairn %s" "cairn"`, roffText(strings.ToUpper(manName(c))), roffText(cairn.Version))
	p.section("NAME")
	p.line(`%s \- %s`, roffText(manName(c)), roffText(c.Short))
	if !c.IsAdditionalHelpTopicCommand() {
		p.section("SYNOPSIS")
		p.block(c.UseLine())
	}
	p.section("DESCRIPTION")
	p.text(c.Long)
	p.flags("OPTIONS", c.NonInheritedFlags())
	p.flags("OPTIONS OF EVERY COMMAND", c.InheritedFlags())
	if c.HasExample() {
		p.section("EXAMPLES")
		p.block(dedentText(c.Example))
	}
	p.seeAlso(c)
	return p.b.String()
}

// roff is a page in the language of man.
type roff struct{ b strings.Builder }

func (p *roff) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

func (p *roff) section(title string) { p.line(`.SH "%s"`, title) }

// text adds paragraphs of a help text. Indented lines stay as they are.
func (p *roff) text(text string) {
	var code []string
	flush := func() {
		if len(code) > 0 {
			p.block(dedentText(strings.TrimRight(strings.Join(code, "\n"), "\n")))
			code = nil
		}
	}
	begins := true
	for l := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		switch {
		case strings.HasPrefix(l, "  ") || strings.HasPrefix(l, "\t"), l == "" && len(code) > 0:
			code = append(code, l)
		case l == "":
			begins = true
		default:
			begins = begins || len(code) > 0
			flush()
			if begins {
				p.line(".PP")
			}
			begins = false
			p.line("%s", roffLine(l))
		}
	}
	flush()
}

// block adds lines that stay as they are.
func (p *roff) block(text string) {
	p.line(".PP\n.RS 4\n.nf")
	for l := range strings.SplitSeq(text, "\n") {
		p.line("%s", roffLine(l))
	}
	p.line(".fi\n.RE")
}

// flags adds a section of flags, unless the command has no flags.
func (p *roff) flags(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	p.section(title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		arg, usage := pflag.UnquoteUsage(f)
		names := `\fB` + roffText("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			names = `\fB` + roffText("-"+f.Shorthand) + `\fR, ` + names
		}
		if arg != "" {
			names += ` \fI` + roffText(arg) + `\fR`
		}
		if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		p.line(".TP\n%s\n%s", names, roffLine(usage))
	})
}

// seeAlso adds the pages above and below a command. The page of the program lists all of
// its commands and topics.
func (p *roff) seeAlso(c *cobra.Command) {
	var names []string
	if c.HasParent() {
		names = append(names, manName(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			names = append(names, manName(sub))
		}
	}
	if len(names) == 0 {
		return
	}
	p.section("SEE ALSO")
	for i, name := range names {
		end := ","
		if i == len(names)-1 {
			end = ""
		}
		p.line(`\fB%s\fR(1)%s`, roffText(name), end)
	}
}

// roffText escapes the characters that have a meaning in the language of man, inside of
// a line. An escaped minus sign can be copied into a shell.
func roffText(s string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, `"`, `\(dq`).Replace(s)
}

// roffLine is roffText for a whole line: a full stop or a quote at its beginning would be a
// request.
func roffLine(s string) string {
	s = roffText(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		return `\&` + s
	}
	return s
}

// dedentText removes the indentation of a block in a help text.
func dedentText(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
