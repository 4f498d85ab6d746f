package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/internal/must"
)

var (
	// code matches code in a text: a fenced block or a span of a page, an indented
	// line of a help text or a makefile, a quotation in a help text.
	code = regexp.MustCompile("(?ms)^```\\w*\n(.*?)^```|`([^`\n]+)`|^(?:\\t|  )([^\n]+)|'(cairn [^'\n]+)'")
	// called matches a command line in code: at the beginning, after a prompt, or
	// after a character that begins another command in a shell.
	called = regexp.MustCompile(`(?m)(?:^ *(?:[$] )?|[(|&] ?|or: )(?:\$\(BIN\)/|bin/|(?:go|\$\(GO\)) run \./cmd/)?cairn ([^\n]+)`)
	// word matches a word of a command line, or a character that ends it.
	word = regexp.MustCompile(`'[^']*'|"[^"]*"|\$\(\w+\)|[|&<>;#)]|[^\s|&<>;#)]+|   `)
)

// The commands and flags in every command line that a page, the Makefile or a help
// text quotes exist.
func TestQuotedCommandLinesParse(t *testing.T) {
	total := 0
	for where, text := range quotingTexts(t) {
		for _, block := range code.FindAllStringSubmatch(text, -1) {
			for _, m := range called.FindAllStringSubmatch(strings.Join(block[1:], ""), -1) {
				if words := commandWords(m[1]); len(words) > 0 {
					total++
					checkCommandLine(t, where, words)
				}
			}
		}
	}
	if total < 80 {
		t.Errorf("%d command lines found; the pattern is wrong", total)
	}
}

// quotingTexts returns all texts that quote command lines, by their location.
func quotingTexts(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	root := filepath.Join("..", "..", "..", "..")
	for _, pattern := range []string{"*.md", "Makefile", "docs/*.md", "docs/*/*.md", "changelog/*/*.md"} {
		names := must.Get(filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern))))(t)
		for _, n := range names {
			b := must.Get(os.ReadFile(n))(t)
			out[n] = string(b)
		}
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		out[c.CommandPath()+" --help"] = c.Long + "\n" + c.Example
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCmd())
	return out
}

// commandWords returns the words of a command line after the program's name, up to
// the next shell operator or remark.
func commandWords(line string) []string {
	var out []string
	for _, w := range word.FindAllString(line, -1) {
		if len(w) == 1 && strings.Contains("|&<>;#)", w) || w == "   " {
			break
		}
		out = append(out, strings.Trim(w, `"'`))
	}
	return out
}

func checkCommandLine(t *testing.T, where string, words []string) {
	t.Helper()
	root := newRootCmd()
	line := "cairn " + strings.Join(words, " ")
	cmd, rest, err := root.Find(words)
	if err != nil {
		t.Errorf("%s: %s: %v", where, line, err)
		return
	}
	rest, open := withoutPlaceholders(rest)
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%s: %s: %v", where, line, err)
		return
	}
	args := cmd.Flags().Args()
	if cmd.HasSubCommands() && len(args) > 0 {
		t.Errorf("%s: %s: there is no command %s", where, line, args[0])
	}
	// A line that is only the command's name is about the command.
	if check := cmd.Args; check != nil && !open && len(rest) > 0 && !cmd.HasSubCommands() {
		if err := check(cmd, args); err != nil {
			t.Errorf("%s: %s: %v", where, line, err)
		}
	}
}

// withoutPlaceholders leaves out placeholders, and reports whether there were any.
func withoutPlaceholders(words []string) ([]string, bool) {
	var out []string
	open := false
	for _, w := range words {
		switch {
		case strings.HasPrefix(w, "[") || strings.Contains(w, "…") || w == "COMMAND":
			open = true
		case w == "$(BENCHSIZE)":
			out = append(out, "4GiB")
		default:
			out = append(out, w)
		}
	}
	return out, open
}
