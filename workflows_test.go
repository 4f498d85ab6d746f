package cairn_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

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
