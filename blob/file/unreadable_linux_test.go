package file_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestListNamesTheFolderThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	must.Do(t, errors.Join(os.Mkdir(filepath.Join(dir, "closed"), 0), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	var listed, outer error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if os.Getuid() == 0 {  // root can read every folder
			if outer = syscall.Setfsuid(65534); outer != nil {
				return
			}
		}
		if _, outer = os.ReadDir(dir); outer != nil {
			return
		}
		for _, err := range s.List(t.Context(), "") {
			listed = err
		}
	}()
	<-done
	if outer != nil {
		t.Skipf("no other user can read the folder of this test: %v", outer)
	}
	if !errors.Is(listed, fs.ErrPermission) || !strings.Contains(listed.Error(), "closed") {
		t.Errorf("List: %v", listed)
	}
}
