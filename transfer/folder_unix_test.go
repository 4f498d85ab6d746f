//go:build unix

package transfer

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Files beside the checkpoint are copied; leftovers, folders and odd files are not. Links
// arrive as the files that they lead to.
func TestCopyOfAFolder(t *testing.T) {
	dir, behind := t.TempDir(), t.TempDir()
	src := must.Get(file.Open(dir, nil))(t)
	save(t, src, formats.Native, "save1", 64, 1)
	for name, text := range map[string]string{
		"config.json": "{}", "folder/notes.txt": "x", "save0-r00000-0.safetensors": "a leftover",
	} {
		storagetest.Put(t, src, name, []byte(text))
	}
	must.Do(t, os.WriteFile(filepath.Join(behind, "target"), []byte("behind a link"), 0o666))
	for link, target := range map[string]string{"linked.txt": filepath.Join(behind, "target"), "dangling": filepath.Join(behind, "nothing"), "folder2": behind} {
		must.Do(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	must.Do(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o666))
	out := filepath.Join(t.TempDir(), "a", "b")
	dst := must.Get(file.Open(out, nil))(t)
	rep := must.Get(Copy(t.Context(), src, dst, nil))(t)
	wantSeed(t, dst, 1)
	names := storagetest.Names(t, dst)
	for name, want := range map[string]bool{
		"config.json": true, "linked.txt": true, "folder/notes.txt": false, "save0-r00000-0.safetensors": false, "dangling": false, "pipe": false,
	} {
		if slices.Contains(names, name) != want {
			t.Errorf("%s is in the target: %v; want %v", name, !want, want)
		}
	}
	if fi, err := os.Lstat(filepath.Join(out, "linked.txt")); err != nil || !fi.Mode().IsRegular() {
		t.Errorf("linked.txt is %v, %v; want a file", fi, err)
	}
	if want := []string{"folder/", "save0-r00000-0.safetensors"}; !slices.Equal(rep.LeftOut, want) {
		t.Errorf("left out %v; want %v", rep.LeftOut, want)
	}
	if left, err := formats.Leftovers(t.Context(), dst); err != nil || len(left) > 0 {
		t.Errorf("leftovers %v, %v; want none", left, err)
	}
}
