package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// A run that cannot be written to is listed and uploaded. Prune fails, and removes nothing.
func TestReadOnlyRun(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	local, remote := t.TempDir(), t.TempDir()
	for step := range int64(3) {
		dir := filepath.Join(local, save(t, local, step))
		must.Do(t, os.Chmod(dir, 0o555))
		t.Cleanup(func() { _ = os.Chmod(dir, 0o777) })
	}
	must.Do(t, os.Chmod(local, 0o555))
	t.Cleanup(func() { _ = os.Chmod(local, 0o777) })

	if done := must.Get(openRun(t, local, remote).Sync(t.Context(), nil))(t); len(done) != 3 {
		t.Errorf("Sync = %+v; want three uploads", done)
	}
	if _, err := openRun(t, local, "").Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1")}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Prune: %v; want %v", err, fs.ErrPermission)
	}
	if got := list(t, openRun(t, local, remote)); len(got) != 3 || got[0] != FolderName(0)+" both" {
		t.Errorf("there are %q", got)
	}
}
