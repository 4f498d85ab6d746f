package cairn_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// Every package has one package comment.
func TestEveryPackageHasAComment(t *testing.T) {
	pkgs := must.Get(readPackages(os.DirFS(".")))(t)
	for _, name := range slices.Sorted(maps.Keys(pkgs)) {
		comments, err := packageComments(pkgs[name].files)
		switch {
		case err != nil:
			t.Error(err)
		case len(comments) == 0:
			t.Errorf("package %s has no comment", name)
		case len(comments) > 1:
			t.Errorf("package %s has comments in %v; want one", name, slices.Sorted(maps.Keys(comments)))
		}
		for file, text := range comments {
			checkPackageComment(t, file, text)
		}
	}
}

// packageComments returns the package comments of files by package. Test files
// count only if a package has no other files.
func packageComments(files []string) (map[string]*ast.File, error) {
	code := slices.DeleteFunc(slices.Clone(files), func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	if len(code) == 0 {
		code = files
	}
	out := map[string]*ast.File{}
	for _, name := range code {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return nil, err
		}
		if f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != "" {
			out[name] = f
		}
	}
	return out, nil
}

func checkPackageComment(t *testing.T, file string, f *ast.File) {
	t.Helper()
	text := f.Doc.Text()
	want := "Package " + f.Name.Name + " "
	if f.Name.Name == "main" {
		want = "Command " + path.Base(path.Dir(file)) + " "
	}
	if !strings.HasPrefix(text, want) {
		t.Errorf("%s: the package comment begins %.30q; want %q", file, text, want)
	}
}
