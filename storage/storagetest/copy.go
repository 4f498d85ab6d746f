package storagetest

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// CopyFolder copies a folder of testdata. It leaves out the locks of processes that read the
// folder: tests of other packages run at the same time.
func CopyFolder(t testing.TB, from, to string) {
	t.Helper()
	must.Do(t, os.CopyFS(to, unlocked{os.DirFS(from)}))
}

// unlocked is a file system without the locks of other processes.
type unlocked struct{ fs.FS }

var _ fs.ReadDirFS = unlocked{}

func (u unlocked) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(u.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), blob.Reserved) }), err
}
