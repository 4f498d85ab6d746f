// Package docs checks the documentation against the code: quoted examples are
// the ones that run, and links lead somewhere. It is tests only.
package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
)

var update = flag.Bool("update", false, "write the quoted code into the pages")

// quoted is a code block with the place it is from: a file, relative to the
// module, and perhaps the name of a function in it. Without one it is all of
// the file behind the imports, and all of a program behind its comment; in
// other languages, all of the file.
var quoted = regexp.MustCompile("(?s)<!-- from (\\S+?)(?:#(\\w+))? -->\n```(?:go|python|sh|yaml)\n(.*?)```\n")

func TestQuotesAreTheExamples(t *testing.T) {
	total := 0
	for _, page := range pages(t) {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		now := quoted.ReplaceAllFunc(b, func(m []byte) []byte {
			total++
			sub := quoted.FindSubmatch(m)
			code, err := source(string(sub[1]), string(sub[2]))
			if err != nil {
				t.Errorf("%s: %v", page, err)
				return m
			}
			head := len(m) - len(sub[3]) - len("```\n")
			return append(append(m[:head:head], code...), "```\n"...)
		})
		if string(now) == string(b) {
			continue
		}
		if *update {
			err = os.WriteFile(page, now, 0o644)
		} else {
			t.Errorf("%s quotes other code than there is (go test ./docs -update): -page +code\n%s", page, cmp.Diff(string(b), string(now)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if total == 0 {
		t.Error("no page quotes anything; the pattern is wrong")
	}
}

// source returns the code of a file behind its imports, of a program with them,
// or of one function.
func source(file, function string) (string, error) {
	src, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(file)))
	if err != nil {
		return "", err
	}
	if path.Ext(file) != ".go" {
		return sourcePython(file, string(src), function)
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments)
	if err != nil {
		return "", err
	}
	text := func(from, to token.Pos) string {
		return strings.TrimSpace(string(src[fset.Position(from).Offset:fset.Position(to).Offset])) + "\n"
	}
	end := f.Name.End()
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			end = g.End()
		}
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == function {
			from := fn.Pos()
			if fn.Doc != nil {
				from = fn.Doc.Pos()
			}
			return text(from, fn.End()), nil
		}
	}
	if function != "" {
		return "", fmt.Errorf("%s has no function %s", file, function)
	}
	if f.Name.Name == "main" {
		end = f.Package
	}
	return text(end, f.FileEnd), nil
}

// sourcePython returns a file, or one function of it if it is in Python: the lines
// behind its head that are indented or empty.
func sourcePython(file, src, function string) (string, error) {
	if function == "" {
		return strings.TrimSpace(src) + "\n", nil
	}
	body := regexp.MustCompile(`(?m)^def ` + function + `\(.*\n((    .*)?\n)*`).FindString(src)
	if body == "" {
		return "", fmt.Errorf("%s has no function %s", file, function)
	}
	return strings.TrimSpace(body) + "\n", nil
}

func TestSourceOfPython(t *testing.T) {
	const src = "import x\n\n\ndef one(a):\n    return 1\n\n    # end\n\n\ndef two(\n"
	if got, err := sourcePython("f.py", src, "one"); got != "def one(a):\n    return 1\n\n    # end\n" || err != nil {
		t.Errorf("sourcePython(one) = %q, %v", got, err)
	}
	if got, err := sourcePython("f.py", src, "on"); err == nil {
		t.Errorf("sourcePython(on) = %q; want an error", got)
	}
}

// pages returns the names of all pages of the module, relative to this folder.
func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"../*.md", "../python/*.md", "*.md", "*/*.md"} {
		m := must.Get(filepath.Glob(pattern))(t)
		out = append(out, m...)
	}
	return out
}
