//go:build unix

package file_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// linked returns a store with links of all kinds into a directory outside, and
// that directory.
func linked(t *testing.T) (*file.Store, string) {
	t.Helper()
	dir, outside := t.TempDir(), t.TempDir()
	s := openStore(t, dir, nil)
	put(t, s, "real/x")
	must.Do(t, os.WriteFile(filepath.Join(outside, "target"), []byte("outside"), 0o666))
	for name, target := range map[string]string{
		"file": filepath.Join(outside, "target"), "dir": outside, "inner": "real", "dangling": "nowhere", "loop": "loop",
	} {
		must.Do(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	return s, outside
}

func TestReadingFollowsLinks(t *testing.T) {
	s, _ := linked(t)
	for name, want := range map[string]string{"file": "outside", "dir/target": "outside", "inner/x": "I am real/x"} {
		if got, err := blob.ReadAll(t.Context(), s, name, 100); err != nil || string(got) != want {
			t.Errorf("ReadAll(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	if info, err := s.Stat(t.Context(), "file"); err != nil || info.Size != 7 {
		t.Errorf("Stat(file) = %+v, %v; want the size of its target", info, err)
	}
}

func TestListShowsLinksToFilesOnly(t *testing.T) {
	s, _ := linked(t)
	for prefix, want := range map[string][]string{"": {"file", "real/x"}, "dir/": {}, "inner/x": {}, "f": {"file"}} {
		if diff := cmp.Diff(want, listed(t, s, prefix)); diff != "" {
			t.Errorf("List(%q), -want +got:\n%s", prefix, diff)
		}
	}
}

func TestWritingStaysInside(t *testing.T) {
	s, outside := linked(t)
	for _, name := range []string{"dir/target", "dir/new", "dir/a/b"} {
		if _, err := blob.WriteAll(t.Context(), s, name, []byte("bad"), nil); err == nil {
			t.Errorf("WriteAll(%q) = nil; want an error", name)
		}
		if err := s.Remove(t.Context(), name); err == nil && name == "dir/target" {
			t.Errorf("Remove(%q) = nil; want an error", name)
		}
	}
	put(t, s, "file") // in the place of the link
	put(t, s, "dangling")
	if got := tree(t, outside); len(got) != 1 {
		t.Errorf("outside there is %q; want target alone", got)
	}
	if got, err := os.ReadFile(filepath.Join(outside, "target")); err != nil || string(got) != "outside" {
		t.Errorf("target = %q, %v; want it untouched", got, err)
	}
}

func TestRemoveRemovesTheLink(t *testing.T) {
	s, outside := linked(t)
	if err := s.Remove(t.Context(), "file"); err != nil {
		t.Errorf("Remove(file) = %v; want nil", err)
	}
	if err := s.Remove(t.Context(), "inner/x"); err != nil {
		t.Errorf("Remove(inner/x) = %v; want nil", err)
	}
	if _, err := os.Lstat(filepath.Join(s.String(), "inner")); err != nil {
		t.Errorf("the link to the emptied directory: %v; want it kept", err)
	}
	if got := tree(t, outside); len(got) != 1 {
		t.Errorf("outside there is %q; want target", got)
	}
}

func TestLinkToTheStore(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink(dir, link))
	s := openStore(t, link, nil)
	put(t, s, "a/x")
	if diff := cmp.Diff([]string{"a/x"}, listed(t, s, "")); diff != "" {
		t.Errorf("List, -want +got:\n%s", diff)
	}
	if _, err := s.Stat(t.Context(), "a/x/y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat(a/x/y) = %v; want fs.ErrNotExist", err)
	}
}

func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	put(t, s, "a/x")
	for _, name := range []string{".DS_Store", "a/b\\c", "a/tab\t", blob.Reserved + "x", "a/" + blob.Reserved + "y"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o666))
	}
	must.Do(t, os.MkdirAll(filepath.Join(dir, "empty", blob.Reserved+"dir"), 0o777))
	if diff := cmp.Diff([]string{".DS_Store", "a/x"}, listed(t, s, "")); diff != "" {
		t.Errorf("List, -want +got:\n%s", diff)
	}
}

func TestRealPath(t *testing.T) {
	dir := file.RealPath(t.TempDir())
	must.Do(t, os.MkdirAll(filepath.Join(dir, "real", "below"), 0o777))
	for name, target := range map[string]string{"link": "real", "dangling": "nowhere", "loop": "loop"} {
		must.Do(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	t.Chdir(filepath.Join(dir, "link"))
	for path, want := range map[string]string{
		"below":            "real/below",
		"":                 "real",
		"new/x":            "real/new/x",
		dir + "/link/new/": "real/new",
		dir + "/link/..":   "",
		"../dangling/x":    "dangling/x",
		"../loop":          "loop",
	} {
		if got := file.RealPath(path); got != filepath.Join(dir, want) {
			t.Errorf("RealPath(%q) = %s; want %s in %s", path, got, want, dir)
		}
	}
	if got := file.RealPath("/"); got != "/" {
		t.Errorf("RealPath(/) = %s", got)
	}
}
