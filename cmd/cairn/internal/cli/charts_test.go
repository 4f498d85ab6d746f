package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/web"
)

// The charts that are drawn both in Go and by a page are the ones that design note 0033 lists. Code
// for each of them exists.
func TestChartsWithTwoDrawings(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..")
	note := must.Get(os.ReadFile(filepath.Join(root, "docs", "design", "0033-charts.md")))(t)
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (.*?) \\| `(.*?)` \\|").FindAllStringSubmatch(string(note), -1) {
		listed = append(listed, row[1])
		for _, name := range regexp.MustCompile("`(.*?)`").FindAllStringSubmatch(row[2], -1) {
			must.Get(os.Stat(filepath.Join(root, "inspect", "plot", name[1])))(t)
		}
		must.Get(os.Stat(filepath.Join(root, filepath.FromSlash(row[3]))))(t)
	}
	slices.Sort(listed)
	if d := cmp.Diff(listed, slices.Sorted(slices.Values(web.Pictures()))); d != "" {
		t.Errorf("charts with two drawings: -note +cairn plot\n%s", d)
	}
}
