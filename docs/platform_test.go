package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// packages are the folders of the packages that platform.md and the words of
// architecture.md name.
var packages = map[string]string{
	"cairn": ".", "tensor": "tensor", "value": "value", "group": "group", "tcp": "group/tcp", "collective": "platform/collective",
	"platform": "platform", "host": "platform/host", "autograd": "platform/autograd", "nn": "platform/nn", "shard": "shard",
	"plan": "plan", "meta": "meta", "storage": "storage", "hf": "storage/hf", "torchdcp": "storage/torchdcp", "blob": "blob",
	"commit": "storage/commit",
}

var (
	row        = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (.*) \\| (.*) \\| (.*) \\|$")
	identifier = regexp.MustCompile("`([a-z]+)\\.([A-Z]\\w*(?:\\.[A-Z]\\w*)?)`")
	testLink   = regexp.MustCompile("\\[`([tT]est\\w+)`\\]\\(\\.\\./([\\w/]+\\.go)\\)")
	testLinks  = regexp.MustCompile("^" + testLink.String() + "(?:, " + testLink.String() + ")*$")
)

// The page has each method of hyper_parallel's platform once, with its name here and
// a test.
func TestPlatformPageHasEveryMethod(t *testing.T) {
	list := must.Get(os.ReadFile("testdata/platform-methods.txt"))(t)
	want := slices.Sorted(strings.FieldsSeq(string(list)))
	var got []string
	for _, m := range platformRows(t) {
		got = append(got, m[1])
		if !identifier.MatchString(m[2]) {
			t.Errorf("%s: %q is no name", m[1], m[2])
		}
		if !testLinks.MatchString(m[3]) {
			t.Errorf("%s: tested by %q; want links to tests", m[1], m[3])
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" || len(got) != 95 {
		t.Errorf("%d methods; want 95: -seed +page\n%s", len(got), d)
	}
}

// The names on the page exist: exported names of Go packages, and tests.
func TestPlatformPageNamesWhatIsThere(t *testing.T) {
	known := knownNames(t)
	for _, m := range identifier.FindAllStringSubmatch(prose(t, "platform.md"), -1) {
		if all := known[m[1]]; all == nil || !all[m[2]] {
			t.Errorf("platform.md names %s.%s, which is not there", m[1], m[2])
		}
	}
	for _, link := range testLink.FindAllStringSubmatch(prose(t, "platform.md"), -1) {
		if !functions(t, filepath.Join("..", link[2]))[link[1]] {
			t.Errorf("platform.md: there is no %s in %s", link[1], link[2])
		}
	}
}

// knownNames returns the exported names of each of the packages.
func knownNames(t *testing.T) map[string]map[string]bool {
	t.Helper()
	known := map[string]map[string]bool{}
	for name, folder := range packages {
		known[name] = exported(t, filepath.Join("..", folder))
	}
	return known
}

// platformRows returns the rows of the methods, cell by cell.
func platformRows(t *testing.T) [][]string {
	t.Helper()
	_, table, ok := strings.Cut(prose(t, "platform.md"), "\n## The 95 methods\n")
	if !ok {
		t.Fatal("platform.md has no such section")
	}
	return row.FindAllStringSubmatch(table, -1)
}

// functions returns the names of the functions of a file.
func functions(t *testing.T, file string) map[string]bool {
	t.Helper()
	f := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
	out := map[string]bool{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
			out[fn.Name.Name] = true
		}
	}
	return out
}

// exported returns the exported names in the files of a package: "Name", and "Type.Name"
// for methods and fields.
func exported(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files := must.Get(filepath.Glob(filepath.Join(folder, "*.go")))(t)
	out := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
		ast.FileExports(f)
		for _, d := range f.Decls {
			declare(out, d)
		}
	}
	return out
}

func declare(out map[string]bool, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			name = receiver(d.Recv.List[0].Type) + "." + name
		}
		out[name] = true
	case *ast.GenDecl:
		for _, s := range d.Specs {
			declareSpec(out, s)
		}
	}
}

func declareSpec(out map[string]bool, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			out[n.Name] = true
		}
	case *ast.TypeSpec:
		out[s.Name.Name] = true
		ast.Inspect(s.Type, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok {
				for _, name := range f.Names {
					out[s.Name.Name+"."+name.Name] = true
				}
				if len(f.Names) == 0 {
					out[s.Name.Name+"."+receiver(f.Type)] = true
				}
				return false // leave out the names of a method's parameters
			}
			return true
		})
	}
}

// receiver returns the name of a method's type, or of an embedded type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}
