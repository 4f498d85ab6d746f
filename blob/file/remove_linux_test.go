package file

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

// The name of a large object is gone when Remove returns. Its blocks are freed soon after
// that: no file stays open.
func TestRemoveOfLargeObject(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blob.WriteAll(t.Context(), s, "a/large", make([]byte, largeFile), &blob.CreateOptions{Piece: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "a/large"); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the folder holds %v, %v; want nothing", names, err)
	}
	freeing.Lock()
	defer freeing.Unlock()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); strings.HasPrefix(to, dir) {
			t.Errorf("%s is still open", to)
		}
	}
}
