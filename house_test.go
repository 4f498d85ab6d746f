package cairn_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// onlyMany matches a text that is wrong if its number is one: "1 files are missing".
var onlyMany = regexp.MustCompile(`%d (\w+ )?(files|names|tensors|weights|checkpoints|processes|objects|versions|folders) (are|were|have)\b`)

// Texts are right for one thing, too.
func TestTextsFitOneThing(t *testing.T) {
	total := 0
	must.Do(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		total++
		for _, text := range onlyMany.FindAllString(string(must.Get(os.ReadFile(path))(t)), -1) {
			if !manyFor[text] {
				t.Errorf("%s: %q is wrong for one", path, text)
			}
		}
		return nil
	}))
	if total < 500 {
		t.Errorf("%d files found", total)
	}
}

// manyFor are texts with a number that is at least two.
var manyFor = map[string]bool{"%d files are": true, "%d versions are": true, "%d checkpoints were": true}

// pinned matches an action by its full commit, with its version as a remark.
var pinned = regexp.MustCompile(`^\S+@[0-9a-f]{40} # v\d+(\.\d+)*$`)

// Workflows name each action by its commit: a tag or a branch can be moved to other code.
func TestActionsArePinned(t *testing.T) {
	total := 0
	for _, name := range must.Get(filepath.Glob(".github/workflows/*.yml"))(t) {
		for line := range strings.Lines(string(must.Get(os.ReadFile(name))(t))) {
			_, action, found := strings.Cut(strings.TrimSpace(line), "uses: ")
			if !found || strings.HasPrefix(action, "./") {
				continue
			}
			total++
			if !pinned.MatchString(action) {
				t.Errorf("%s: %s: want a full commit and its version", name, action)
			}
		}
	}
	if total < 10 {
		t.Errorf("%d actions found; the pattern is wrong", total)
	}
}
