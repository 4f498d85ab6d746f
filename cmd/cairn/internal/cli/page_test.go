package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/bench"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/demo"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
	"github.com/cairn-ckpt/cairn/internal/must"
)

//go:generate go test -run TestPageIsUpToDate . -update

var update = flag.Bool("update", false, "rewrite docs/cli.md")

const pageHead = `# The command line

<!-- Generated from the commands in cmd/cairn/internal/cli by "go generate ./cmd/cairn/internal/cli"; do not edit. -->

` + "`cairn`" + ` works with checkpoints. ` + "[What is printed where](#what-is-printed-where)" + ` says what goes to stdout and stderr, and what
` + "`--json`, `--quiet`" + ` and a terminal change; [what the exit codes mean](#what-the-exit-codes-mean) is a table.
`

// The page describes the commands as they are. Run "go generate
// ./cmd/cairn/internal/cli" after a change.
func TestPageIsUpToDate(t *testing.T) {
	want := page(newRootCmd())
	name := filepath.Join("..", "..", "..", "..", "docs", "cli.md")
	if *update {
		must.Do(t, os.WriteFile(name, []byte(want), 0o644))
	}
	got := must.Get(os.ReadFile(name))(t)
	if d := cmp.Diff(string(got), want); d != "" {
		t.Errorf("docs/cli.md is out of date; run go generate ./cmd/cairn/internal/cli: -is +should be\n%s", d)
	}
}

// page returns the page of all commands below root.
func page(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(pageHead)
	fmt.Fprintf(&b, "\n## Flags of every command\n\n%s", flagTable(root.PersistentFlags()))
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", g.Title)
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && !c.Hidden {
				writeCommand(&b, c)
			}
		}
	}
	for _, c := range root.Commands() {
		if c.IsAdditionalHelpTopicCommand() {
			fmt.Fprintf(&b, "\n## %s\n\n%s", c.Short, markdown(c.Long))
		}
	}
	return b.String()
}

func writeCommand(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n### %s\n\n%s.\n\n```\n%s\n```\n\n%s", c.CommandPath(), c.Short, c.UseLine(), markdown(c.Long))
	if t := flagTable(c.NonInheritedFlags()); t != "" {
		fmt.Fprintf(b, "\n%s", t)
	}
	if c.HasExample() {
		fmt.Fprintf(b, "\nExamples:\n\n```\n%s\n```\n", dedentText(c.Example))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			writeCommand(b, sub)
		}
	}
}

// flagTable returns a table of the flags, or "" if the command has no flags.
func flagTable(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if b.Len() == 0 {
			b.WriteString("| flag | default | |\n|---|---|---|\n")
		}
		arg, usage := pflag.UnquoteUsage(f)
		name := "`" + strings.TrimSpace("--"+f.Name+" "+arg) + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		def := ""
		if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
			def = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, def, usage)
	})
	return b.String()
}

// markdown turns a help text into a page: indented lines become a block of code.
func markdown(text string) string {
	var b strings.Builder
	code := false
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, l := range lines {
		indented := strings.HasPrefix(l, "  ") || strings.HasPrefix(l, "\t")
		blankInside := l == "" && code && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "  ")
		if next := indented || blankInside; next != code {
			b.WriteString("```\n")
			code = next
		}
		b.WriteString(strings.TrimPrefix(l, "  ") + "\n")
	}
	if code {
		b.WriteString("```\n")
	}
	return b.String()
}

// Every command has a short and a long text, examples, and completion.
func TestCommandsAreExplained(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.Short == "" || c.Long == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: want a short text without a full stop, and a long one", c.CommandPath())
		}
		if c.IsAdditionalHelpTopicCommand() {
			return
		}
		if c.Example == "" || c.HasParent() && c.Args == nil && c.Name() != "help" {
			t.Errorf("%s: want examples and a check of its arguments", c.CommandPath())
		}
		if c.HasParent() && !c.HasSubCommands() && c.ValidArgsFunction == nil {
			t.Errorf("%s: want completion of its arguments", c.CommandPath())
		}
		if strings.Contains(c.UsageString(), "(default )") {
			t.Errorf("%s: a flag has an empty default in its help", c.CommandPath())
		}
		for line := range strings.Lines(c.Long) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 82 {
				t.Errorf("%s: a line of %d characters in its help: %s", c.CommandPath(), n, line)
			}
		}
	}
	walk(newRootCmd())
}

// The help of a command names every field of its JSON.
func TestJSONIsExplained(t *testing.T) {
	root := newRootCmd()
	for name, vs := range map[string][]any{
		"ls": {listing{}}, "inspect": {overview{}, closeUp{}, branch{}}, "digest": {digestList{}}, "verify": {verdict{}, runVerdict{}},
		"convert": {conversionResult{}, conversionPlan{}},
		"repair":  {repairResult{}}, "man": {manResult{}}, "table": {tableResult{}}, "version": {versionInfo{}}, "demo": {demo.Report{}},
		"exit-codes": {failure{}}, "bench io": {bench.IOResult{}}, "bench blob": {bench.BlobResult{}},
		"launch": {launch.Report{}}, "cat": {catValue{}, catFile{}}, "diff": {difference{}}, "stats": {statistics{}},
		"runs": {runsResult{}}, "log": {logResult{}}, "tag": {tagResult{}}, "settings": {settingsResult{}}, "prune": {pruneResult{}}, "rm": {removeResult{}}, "rewind": {rewindResult{}}, "flatten": {flattenResult{}}, "recipes": {recipesResult{}}, "recipes show": {recipeText{}}, "doctor": {doctorResult{}}, "plot": {plotResult{}}, "bench delta": {bench.DeltaResult{}}, "bench versions": {bench.VersionsResult{}}, "bench memory": {bench.MemoryResult{}}, "bench convert": {bench.ConvertResult{}}, "export": {exportResult{}},
		"web": {webResult{}},
	} {
		c, _, err := root.Find(strings.Fields(name))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.FieldsFunc(c.Long, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') })
		for _, v := range vs {
			for _, f := range jsonFields(reflect.TypeOf(v), nil) {
				// The help of ls describes items.
				if !slices.Contains(words, f) && !(name == "inspect" && slices.Contains(jsonFields(reflect.TypeFor[listing](), nil), f)) {
					t.Errorf("cairn %s: its help does not name the JSON field %s", name, f)
				}
			}
		}
	}
}

// jsonFields returns the JSON names of the fields of a type, and of their fields.
func jsonFields(t reflect.Type, seen []reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || slices.Contains(seen, t) || t.PkgPath() == "time" {
		return nil
	}
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			out = append(out, name)
		}
		out = append(out, jsonFields(f.Type, append(seen, t))...)
	}
	return out
}
