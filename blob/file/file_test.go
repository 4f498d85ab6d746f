package file_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestStore(t *testing.T) {
	for name, opts := range map[string]*file.Options{
		"default": nil, "NoDirectNoSync": {NoDirect: true, NoSync: true},
	} {
		t.Run(name, func(t *testing.T) {
			blobtest.Run(t, func(t *testing.T) blob.Store {
				return openStore(t, filepath.Join(t.TempDir(), "new", "store"), opts)
			})
		})
	}
}

func openStore(t *testing.T, dir string, opts *file.Options) *file.Store {
	t.Helper()
	s := must.Get(file.Open(dir, opts))(t)
	return s
}

func put(t *testing.T, s blob.Store, name string) {
	t.Helper()
	if _, err := blob.WriteAll(t.Context(), s, name, []byte("I am "+name), nil); err != nil {
		t.Fatal(err)
	}
}

// tree returns every path below dir. Paths of directories end with a slash.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	paths := []string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		rel, rerr := filepath.Rel(dir, path)
		if rel == "." {
			return err
		}
		if d.IsDir() {
			rel += "/"
		}
		paths = append(paths, filepath.ToSlash(rel))
		return errors.Join(err, rerr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func listed(t *testing.T, s blob.Store, prefix string) []string {
	t.Helper()
	names := []string{}
	for info, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Name)
	}
	return names
}

func TestObjectIsOneFile(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	put(t, s, "a/b/c")
	if got, err := os.ReadFile(filepath.Join(dir, "a", "b", "c")); err != nil || string(got) != "I am a/b/c" {
		t.Errorf("the file holds %q, %v; want the object", got, err)
	}
	if diff := cmp.Diff([]string{"a/", "a/b/", "a/b/c"}, tree(t, dir)); diff != "" {
		t.Errorf("tree, -want +got:\n%s", diff)
	}
	must.Do(t, s.Remove(t.Context(), "a/b/c"))
	if left := tree(t, dir); len(left) > 0 {
		t.Errorf("after Remove there is %q; want nothing", left)
	}
}

func TestMissingDirectoryIsAnEmptyStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet")
	s := openStore(t, dir, nil)
	if names := listed(t, s, ""); len(names) > 0 {
		t.Errorf("List = %q; want nothing", names)
	}
	if _, err := s.Stat(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat = %v; want fs.ErrNotExist", err)
	}
	if _, err := s.Open(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open = %v; want fs.ErrNotExist", err)
	}
	if err := s.Remove(t.Context(), "x"); err != nil {
		t.Errorf("Remove = %v; want nil", err)
	}
	if n, err := s.SweepTemp(t.Context(), "", 0); n != 0 || err != nil {
		t.Errorf("SweepTemp = %d, %v; want 0", n, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v; want it not made by looking", err)
	}
	put(t, s, "x")
	if _, err := os.Stat(filepath.Join(dir, "x")); err != nil {
		t.Error(err)
	}
}

func TestStoreOutlivesItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := openStore(t, dir, nil)
	put(t, s, "a/x")
	must.Do(t, os.RemoveAll(dir))
	if names := listed(t, s, ""); len(names) > 0 {
		t.Errorf("List = %q; want nothing", names)
	}
	put(t, s, "a/x")
}

func TestOpenRefusesAFile(t *testing.T) {
	f := filepath.Join(t.TempDir(), "f")
	must.Do(t, os.WriteFile(f, nil, 0o666))
	if s, err := file.Open(f, nil); !errors.Is(err, syscall.ENOTDIR) || s != nil {
		t.Errorf("Open of a file = %v, %v; want ENOTDIR", s, err)
	}
	if s, err := file.Open("", nil); err == nil || s != nil {
		t.Errorf("Open of nothing = %v, %v; want an error", s, err)
	}
}

func TestDirectoryBelowAFile(t *testing.T) {
	f := filepath.Join(t.TempDir(), "f")
	must.Do(t, os.WriteFile(f, nil, 0o666))
	s := openStore(t, filepath.Join(f, "store"), nil)
	_, err := blob.WriteAll(t.Context(), s, "x", nil, nil)
	if !errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("WriteAll = %v; want ENOTDIR", err)
	}
	if _, err := s.Stat(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat = %v; want fs.ErrNotExist", err)
	}
	if names := listed(t, s, ""); len(names) > 0 {
		t.Errorf("List = %q; want nothing", names)
	}
}

func TestRelativeDirectoryIsFixedAtOpen(t *testing.T) {
	t.Chdir(t.TempDir())
	s := openStore(t, "store/", nil)
	put(t, s, "x")
	t.Chdir(t.TempDir())
	if _, err := s.Stat(t.Context(), "x"); err != nil {
		t.Errorf("Stat after a change of directory = %v; want nil", err)
	}
	if s.String() != "store" {
		t.Errorf("String = %q; want the path as given, cleaned", s)
	}
}

func TestReadOfATruncatedFile(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	put(t, s, "x")
	r := must.Get(s.Open(t.Context(), "x"))(t)
	defer r.Close()
	must.Do(t, os.Truncate(filepath.Join(dir, "x"), 2))
	if err := r.ReadAt(t.Context(), make([]byte, 4), 0); err == nil {
		t.Error("ReadAt of a file cut short = nil; want an error")
	}
}

func TestCommitReplacesAnEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	for _, ifAbsent := range []bool{false, true} {
		must.Do(t, os.Mkdir(filepath.Join(dir, "x"), 0o777))
		if _, err := blob.WriteAll(t.Context(), s, "x", nil, &blob.CreateOptions{IfAbsent: ifAbsent}); err != nil {
			t.Errorf("WriteAll over an empty directory, IfAbsent %v = %v; want nil", ifAbsent, err)
		}
		must.Do(t, s.Remove(t.Context(), "x"))
	}
}

func TestSweepTempKeepsFilesOfLivingAndRecentWriters(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, nil)
	put(t, s, "a/x")
	w := must.Get(s.Create(t.Context(), "a/y", nil))(t)
	defer w.Abort()
	must.Do(t, w.WriteAt(t.Context(), []byte("hello"), 0))
	old := time.Now().Add(-2 * time.Hour)
	for _, f := range []struct {
		name string
		at   time.Time
	}{{"dead/" + blob.Reserved + "1", old}, {blob.Reserved + "2", old}, {blob.Reserved + "young", time.Now()}, {"a/cairn-tmp-mine", old}} {
		path := filepath.Join(dir, f.name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must.Do(t, errors.Join(os.WriteFile(path, []byte("rest"), 0o666), os.Chtimes(path, f.at, f.at)))
	}
	for _, d := range []string{"", "dead", "a"} {
		want := map[string]int{"": 1, "dead": 1}[d]
		if n, err := s.SweepTemp(t.Context(), d, time.Hour); n != want || err != nil {
			t.Errorf("SweepTemp(%q, an hour) = %d, %v; want %d", d, n, err, want)
		}
	}
	if slices.Contains(tree(t, dir), "dead/") || !slices.Contains(tree(t, dir), blob.Reserved+"young") {
		t.Errorf("there is %q; want dead/ gone and the young one kept", tree(t, dir))
	}
	if _, err := w.Commit(t.Context()); err != nil {
		t.Errorf("Commit of the living writer = %v; want nil", err)
	}
	if diff := cmp.Diff([]string{"a/cairn-tmp-mine", "a/x", "a/y"}, listed(t, s, "")); diff != "" {
		t.Errorf("List, -want +got:\n%s", diff)
	}
}

func TestSweepTempEndsWithItsContext(t *testing.T) {
	s := openStore(t, t.TempDir(), nil)
	put(t, s, "x")
	ctx, cancel := cancelledContext(t)
	defer cancel()
	if _, err := s.SweepTemp(ctx, "", 0); !errors.Is(err, errWhy) {
		t.Errorf("SweepTemp = %v; want %v", err, errWhy)
	}
	if err := s.Cool(ctx, "x"); !errors.Is(err, errWhy) {
		t.Errorf("Cool = %v; want %v", err, errWhy)
	}
}
