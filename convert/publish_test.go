package convert

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

// tree returns the files below dir with their contents.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		out[filepath.ToSlash(rel)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)))
}

// stage writes a new checkpoint of two files, or one, into the staging directory of p.
func stage(t *testing.T, p *Place) {
	t.Helper()
	if p.File != "" {
		write(t, filepath.Join(p.Staging(), p.File), "new")
		return
	}
	write(t, filepath.Join(p.Staging(), "a"), "new")
	write(t, filepath.Join(p.Staging(), "sub/b"), "new")
}

// checkpointFiles returns the files named a, sub/b and c, as if they were a checkpoint.
func checkpointFiles(path string) ([]string, error) {
	if fi, err := os.Stat(path); err != nil || !fi.IsDir() {
		return nil, err
	}
	var out []string
	for _, n := range []string{"a", "sub/b", "c"} {
		if exists(filepath.Join(path, n)) {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return nil, storage.ErrNotFound
	}
	return out, nil
}

func TestPublishIsAtomic(t *testing.T) {
	for claim, c := range map[string]struct {
		old, file string
		want      map[string]string
	}{
		"a new directory":                      {"", "", map[string]string{"x/a": "new", "x/sub/b": "new"}},
		"a directory in place of an empty one": {"x/", "", map[string]string{"x/a": "new", "x/sub/b": "new"}},
		"a directory over another":             {"x/c", "", map[string]string{"x/a": "new", "x/sub/b": "new"}},
		"a directory over a file":              {"x", "", map[string]string{"x/a": "new", "x/sub/b": "new"}},
		"a new file":                           {"", "inner", map[string]string{"x": "new"}},
		"a file over another":                  {"x", "inner", map[string]string{"x": "new"}},
	} {
		t.Run(claim, func(t *testing.T) {
			dir := t.TempDir()
			p := &Place{Path: filepath.Join(dir, "x"), File: c.file, Overwrite: true, Look: checkpointFiles}
			switch {
			case c.old == "x/":
				must.Do(t, os.Mkdir(p.Path, 0o777))
			case c.old != "":
				write(t, filepath.Join(dir, c.old), "old")
			}
			stage(t, p)
			must.Do(t, p.Publish())
			if got := tree(t, dir); !equalTrees(got, c.want) {
				t.Errorf("afterwards there is %v; want %v", got, c.want)
			}
		})
	}
}

func equalTrees(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

func TestFailedPublishKeepsOldCheckpoint(t *testing.T) {
	dir := t.TempDir()
	p := &Place{Path: filepath.Join(dir, "x"), Look: checkpointFiles}
	write(t, filepath.Join(dir, "x/c"), "old")
	if err := p.Prepare(); !errors.Is(err, storage.ErrExists) {
		t.Errorf("Prepare = %v; want %v", err, storage.ErrExists)
	}
	stage(t, p)
	if err := p.Publish(); !errors.Is(err, storage.ErrExists) {
		t.Errorf("Publish = %v; want %v", err, storage.ErrExists)
	}
	if got := tree(t, p.Path); !equalTrees(got, map[string]string{"c": "old"}) {
		t.Errorf("afterwards there is %v; want the old one", got)
	}
}

func TestPrepareKeepsBegunConversion(t *testing.T) {
	dir := t.TempDir()
	p := &Place{Path: filepath.Join(dir, "x")}
	write(t, filepath.Join(p.Staging(), recordName), "{}")
	write(t, filepath.Join(p.Staging(), resultsPrefix, "f"), "done")
	must.Do(t, errors.Join(p.Prepare(), p.Discard()))
	if got := tree(t, p.Staging()); len(got) != 2 {
		t.Errorf("there is %v; want what was begun", got)
	}
	must.Do(t, os.RemoveAll(filepath.Join(p.Staging(), resultsPrefix)))
	must.Do(t, p.Discard())
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there is %v, %v; want nothing", left, err)
	}
	if !slices.Contains([]string{".x.cairn-convert"}, filepath.Base(p.Staging())) {
		t.Errorf("Staging = %s; want a hidden name beside", p.Staging())
	}
}
