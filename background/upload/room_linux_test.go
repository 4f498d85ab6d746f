package upload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// A folder in the local run that the user may not read, such as lost+found, is not in the
// way.
func TestFolderThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0))
	if os.Geteuid() == 0 { // as another user, in this thread
		must.Do(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)))
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		must.Do(t, syscall.Setfsuid(12345))
		defer syscall.Setfsuid(0)
	}
	if _, err := os.ReadDir(filepath.Join(dir, "lost+found")); err == nil {
		t.Skip("this user may read everything")
	}
	r := &Room{Ceiling: 1000, Dir: dir, Name: "a", Warn: func(err error) { t.Error(err) }, Uploads: func(context.Context) bool { return false }}
	if !r.make(t.Context(), 900) {
		t.Error("make = false; want room")
	}
}
