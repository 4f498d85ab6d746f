package cairn_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// sources is what one folder imports.
type sources struct {
	files       []string
	code, tests map[string]bool
}

// readPackages reads the imports of every Go file of the module, for whatever
// system it is.
func readPackages(root fs.FS) (map[string]*sources, error) {
	out := map[string]*sources{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipFolder(root, name)
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		s := out[path.Dir(name)]
		if s == nil {
			s = &sources{code: map[string]bool{}, tests: map[string]bool{}}
			out[path.Dir(name)] = s
		}
		return s.add(name, b)
	})
	return out, err
}

// skipFolder keeps the walk out of what is no package of this module.
func skipFolder(root fs.FS, name string) error {
	base := path.Base(name)
	if name == "." {
		return nil
	}
	if base == "testdata" || base[0] == '.' || base[0] == '_' {
		return fs.SkipDir
	}
	if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func (s *sources) add(name string, src []byte) error {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return err
	}
	s.files = append(s.files, name)
	into := s.code
	if strings.HasSuffix(name, "_test.go") {
		into = s.tests
	}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		into[p] = true
	}
	return nil
}
