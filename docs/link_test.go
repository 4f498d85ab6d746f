package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/cairn-ckpt/cairn/internal/must"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced  = regexp.MustCompile("(?s)```.*?```")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// Links to other places of the repository lead to files and headings that are
// there. Those to other sites are not followed.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(prose(t, page), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), filepath.FromSlash(target))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: link to %s: %v", page, m[1], err)
				continue
			}
			if anchor != "" && !anchors(t, file)[anchor] {
				t.Errorf("%s: link to %s: no such heading", page, m[1])
			}
		}
	}
}

// prose returns a page without its code.
func prose(t *testing.T, page string) string {
	t.Helper()
	return fenced.ReplaceAllString(readPage(t, page), "")
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	b := must.Get(os.ReadFile(page))(t)
	return string(b)
}

// anchors returns the names by which a page's headings are linked to.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(prose(t, page), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		out[name] = true
	}
	return out
}

// Files and folders that a page names in code, with a path, are there. A page
// names them from the module's root.
func TestNamedFilesExist(t *testing.T) {
	named := regexp.MustCompile("`([\\w.-]+/[\\w./*-]*)`")
	for _, page := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(prose(t, page), -1) {
			top, _, _ := strings.Cut(m[1], "/")
			if _, err := os.Stat(filepath.Join("..", top)); err != nil || top == "bin" || top == "testdata" {
				continue // a module of others, part of a name, made by make, in any package
			}
			if top == "run" && filepath.Ext(m[1]) != ".go" {
				continue // a checkpoint of an example
			}
			found, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(m[1])))
			if err != nil || len(found) == 0 {
				t.Errorf("%s: there is no %s", page, m[1])
			}
		}
	}
}

// The list of design notes has all of them.
func TestDesignNotesAreListed(t *testing.T) {
	notes, err := filepath.Glob("design/0*.md")
	if err != nil || len(notes) < 20 {
		t.Fatalf("%d design notes, %v", len(notes), err)
	}
	list := readPage(t, "design/README.md")
	for _, n := range notes {
		title, _, _ := strings.Cut(strings.TrimPrefix(readPage(t, n), "# "), "\n")
		number, title, _ := strings.Cut(title, ": ")
		if row := "| [" + number + "](" + filepath.Base(n) + ") | " + title + " |\n"; number != "NNNN" && !strings.Contains(list, row) {
			t.Errorf("design/README.md has no row %q", row)
		}
	}
}
