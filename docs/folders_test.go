package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// module is the import path of the module.
const module = "github.com/cairn-ckpt/cairn"

var folderRow = regexp.MustCompile(`^([\w./]+)(?:\{([\w,]+)\})? `)

// The list of folders in architecture.md has every package, and a package imports
// only packages that are below it there. Suites of tests, such as storagetest, may
// import everything.
func TestFoldersImportDownwards(t *testing.T) {
	rows := folderRows(t)
	edges := 0
	for pkg, imports := range imported(t) {
		from, ok := rowOf(rows, pkg)
		if !ok {
			t.Errorf("architecture.md: the list of folders has no row for %s", pkg)
		}
		for _, to := range imports {
			edges++
			if below, ok := rowOf(rows, to); ok && below < from && !strings.HasSuffix(pkg, "test") {
				t.Errorf("%s imports %s, which architecture.md has above it", pkg, to)
			}
		}
	}
	if len(rows) < 40 || edges < 200 {
		t.Errorf("%d folders and %d imports; the test saw too little", len(rows), edges)
	}
}

// folderRows returns the number of the row of each folder.
func folderRows(t *testing.T) map[string]int {
	t.Helper()
	text := readPage(t, "architecture.md")
	_, text, _ = strings.Cut(text, "\n## Folders\n")
	_, text, _ = strings.Cut(text, "\n```\n")
	text, _, ok := strings.Cut(text, "\n```\n")
	if !ok {
		t.Fatal("architecture.md has no list of folders")
	}
	rows := map[string]int{}
	for i, line := range strings.Split(text, "\n") {
		m := folderRow.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("architecture.md: %q names no folder", line)
		}
		for name := range strings.SplitSeq(m[2], ",") {
			rows[m[1]+name] = i
		}
	}
	return rows
}

// rowOf returns the row of a package, or of the nearest folder around it that has one.
func rowOf(rows map[string]int, pkg string) (int, bool) {
	for ; ; pkg = path.Dir(pkg) {
		if i, ok := rows[pkg]; ok {
			return i, true
		}
		if !strings.Contains(pkg, "/") {
			return 0, false
		}
	}
}

// imported returns which packages of the module each package imports, without its
// tests, by their folders.
func imported(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != ".." && (d.Name() == "testdata" || d.Name() == "bin" || d.Name() == "tools" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel("..", filepath.Dir(file))
		if err != nil {
			return err
		}
		pkg = filepath.ToSlash(pkg)
		for _, im := range f.Imports {
			name, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			if name == module {
				out[pkg] = append(out[pkg], ".")
			} else if folder, ok := strings.CutPrefix(name, module+"/"); ok {
				out[pkg] = append(out[pkg], folder)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
