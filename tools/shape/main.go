// Command shape prints figures of a Go source tree: its lines, packages, files and
// functions, types with methods that are spread over files, and how often comments say
// "where". Tests and generated files do not count.
//
//	go run ./tools/shape [-types] [-where] [DIR ...]
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	types := flag.Bool("types", false, "list the types with methods in three or more files")
	where := flag.Bool("where", false, `list the comments that say "where"`)
	flag.Parse()
	dirs := flag.Args()
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "\tlines\tpackages\tfiles\tfile median\tp90\tp99\tfunc median\tp90\tp99\ttypes in 3+ files\twhere per 10k\t")
	for _, dir := range dirs {
		s, err := measure(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, "shape:", err)
			os.Exit(1)
		}
		s.print(out, dir)
		if *types {
			defer s.printTypes()
		}
		if *where {
			defer fmt.Println(strings.Join(s.where, "\n"))
		}
	}
	out.Flush()
}

// shape has the counts.
type shape struct {
	fset     *token.FileSet
	packages map[string]bool
	files    []int                      // lines of each
	funcs    []int                      // lines of each
	methods  map[string]map[string]bool // the files of each type's methods
	words    int                        // of comments
	where    []string                   // comments
}

// measure counts a tree. It skips testdata, nested modules' vendor folders, and
// files that start with a dot or an underscore.
func measure(root string) (*shape, error) {
	s := &shape{fset: token.NewFileSet(), packages: map[string]bool{}, methods: map[string]map[string]bool{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		return s.add(path)
	})
	return s, err
}

func (s *shape) add(path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(s.fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if ast.IsGenerated(f) {
		return nil
	}
	dir := filepath.Dir(path)
	s.packages[dir] = true
	s.files = append(s.files, strings.Count(string(src), "\n"))
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		s.funcs = append(s.funcs, s.fset.Position(fn.End()).Line-s.fset.Position(fn.Pos()).Line+1)
		if fn.Recv != nil {
			name := dir + "." + receiver(fn.Recv.List[0].Type)
			if s.methods[name] == nil {
				s.methods[name] = map[string]bool{}
			}
			s.methods[name][path] = true
		}
	}
	for _, c := range f.Comments {
		s.addComment(c)
	}
	return nil
}

var whereWord = regexp.MustCompile(`(?i)\bwhere\b`)

func (s *shape) addComment(c *ast.CommentGroup) {
	text := strings.Join(strings.Fields(c.Text()), " ")
	s.words += strings.Count(text, " ") + 1
	for _, m := range whereWord.FindAllStringIndex(text, -1) {
		s.where = append(s.where, fmt.Sprintf("%s: %s", s.fset.Position(c.Pos()), text[max(0, m[0]-60):min(len(text), m[1]+40)]))
	}
}

// receiver returns the name of a method's type.
func receiver(x ast.Expr) string {
	switch t := x.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}

// spread returns the types with methods in three or more files, most files first.
func (s *shape) spread() []string {
	out := slices.Collect(maps.Keys(s.methods))
	out = slices.DeleteFunc(out, func(name string) bool { return len(s.methods[name]) < 3 })
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(s.methods[b]), len(s.methods[a])), cmp.Compare(a, b))
	})
	return out
}

func (s *shape) print(out *tabwriter.Writer, dir string) {
	lines := 0
	for _, n := range s.files {
		lines += n
	}
	fmt.Fprintf(out, "%s\t%d\t%d\t%d\t%s\t%s\t%.1f %%\t%.1f\t\n", filepath.Base(dir), lines, len(s.packages), len(s.files),
		quantiles(s.files), quantiles(s.funcs), ratio(len(s.spread()), len(s.methods), 100), ratio(len(s.where), s.words, 10000))
}

func (s *shape) printTypes() {
	for _, name := range s.spread() {
		fmt.Printf("%d files: %s\n", len(s.methods[name]), name)
	}
}

func ratio(n, of int, scale float64) float64 {
	if of == 0 {
		return 0
	}
	return scale * float64(n) / float64(of)
}

// quantiles returns the median, the 90th and the 99th of a hundred.
func quantiles(n []int) string {
	if len(n) == 0 {
		return "-\t-\t-"
	}
	slices.Sort(n)
	at := func(q int) int { return n[min(len(n)-1, len(n)*q/100)] }
	return fmt.Sprintf("%d\t%d\t%d", at(50), at(90), at(99))
}
