package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// A chart is not written to a terminal, and a chart of a checkpoint that is one file does not
// replace that file.
func TestPlotSparesTerminalsAndCheckpoints(t *testing.T) {
	a, _, _ := longNames(t)
	text := onTerminal(t, 200, func(tty *os.File, _ func() string) {
		if code := Main(t.Context(), []string{"plot", a, "sizes", "--no-cache"}, tty, tty); code != 2 {
			t.Errorf("cairn plot to a terminal ended with %d; want 2", code)
		}
	})
	if strings.Contains(text, "<svg") || !strings.Contains(text, "give -o FILE") {
		t.Errorf("cairn plot printed %q on a terminal; want that it asks for -o", text)
	}
	dir := t.TempDir()
	link := filepath.Join(dir, "link.svg")
	if err := os.WriteFile(link, []byte("a checkpoint"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := notItself(link, filepath.Join(dir, ".", "link.svg")); err == nil {
		t.Error("a chart may replace the checkpoint that it shows")
	}
	// Through a link, to a file of a checkpoint that is a folder.
	folder, name := t.TempDir(), filepath.Join(dir, "record.svg")
	must.Do(t, os.WriteFile(filepath.Join(folder, "cairn.json"), []byte("{}"), 0o600))
	must.Do(t, os.Symlink(filepath.Join(folder, "cairn.json"), name))
	if err := notItself(folder, name); err == nil {
		t.Error("a link to a file of the checkpoint is no error")
	}
	if err := notItself(folder, filepath.Join(folder, "new.svg")); err != nil {
		t.Error(err)
	}
	if err := notItself(link, filepath.Join(dir, "other.svg")); err != nil {
		t.Error(err)
	}
}
