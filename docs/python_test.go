package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

var (
	pythonBlock = regexp.MustCompile("(?s)```python\n(.*?)```")
	// pythonCall matches a name of the package or of cairn.torch, and the arguments of a
	// call that is on one line.
	pythonCall    = regexp.MustCompile(`\bcairn\.(torch\.)?([A-Za-z]\w*)(?:\(([^\n]*)\))?`)
	pythonKeyword = regexp.MustCompile(`[(,] *(\w+)=[^=]`)
	pythonAll     = regexp.MustCompile(`(?s)\n__all__ = \[(.*?)\]`)
	pythonDef     = regexp.MustCompile(`(?ms)^def ([a-z]\w*)\((.*?)\) ->`)
	quotedName    = regexp.MustCompile(`"(\w+)"`)
)

// The code in Python that pages show uses names that the package exports, and
// arguments that its functions have. Code that is quoted from a file is run by
// other tests; the rest is not.
func TestPythonInPagesNamesWhatIsThere(t *testing.T) {
	inPackage, inTorch := pythonNames(t, "../python/cairn"), pythonNames(t, "../python/cairn/torch")
	signatures := pythonSignatures(t, "../python/cairn/torch/*.py")
	total := 0
	for _, page := range pages(t) {
		for _, block := range pythonBlock.FindAllStringSubmatch(quoted.ReplaceAllString(readPage(t, page), ""), -1) {
			for _, m := range pythonCall.FindAllStringSubmatch(block[1], -1) {
				total++
				known := inPackage
				if m[1] != "" {
					known = inTorch
				}
				if !known[m[2]] {
					t.Errorf("%s: there is no %s", page, m[0])
				}
				signature, ok := signatures[m[2]]
				for _, k := range pythonKeyword.FindAllStringSubmatch("("+m[3], -1) {
					if m[1] != "" && ok && !strings.Contains(signature, k[1]+":") {
						t.Errorf("%s: %s has no argument %s", page, m[2], k[1])
					}
				}
			}
		}
	}
	if total < 20 || len(signatures) < 5 {
		t.Errorf("%d names in pages and %d functions in the package; a pattern is wrong", total, len(signatures))
	}
}

// pythonNames returns the names that a package exports, and its modules.
func pythonNames(t *testing.T, folder string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, list := range pythonAll.FindAllStringSubmatch(readPage(t, filepath.Join(folder, "__init__.py")), -1) {
		for _, m := range quotedName.FindAllStringSubmatch(list[1], -1) {
			out[m[1]] = true
		}
	}
	modules := must.Get(filepath.Glob(filepath.Join(folder, "*")))(t)
	for _, m := range modules {
		out[strings.TrimSuffix(filepath.Base(m), ".py")] = true
	}
	return out
}

// pythonSignatures returns the parameters of the functions of a package, as text.
func pythonSignatures(t *testing.T, pattern string) map[string]string {
	t.Helper()
	files := must.Get(filepath.Glob(pattern))(t)
	out := map[string]string{}
	for _, file := range files {
		for _, m := range pythonDef.FindAllStringSubmatch(readPage(t, file), -1) {
			out[m[1]] += m[2] // async_save and the like have overloads
		}
	}
	return out
}

// The README is a first look; pages in docs have the rest.
func TestReadmeIsShort(t *testing.T) {
	const most = 700
	if n := len(strings.Fields(readPage(t, "../README.md"))); n > most {
		t.Errorf("README.md has %d words; want at most %d", n, most)
	}
}
