//go:build unix

package cli

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// readOnlyRun saves steps 1 to 4 of a job, which refer to each other unless alone is true, and makes
// the folders of the first two read-only.
func readOnlyRun(t *testing.T, alone bool) (dir string, save func(step int64, keep string) ([]string, error)) {
	t.Helper()
	dir = t.TempDir()
	save = func(step int64, keep string) (warned []string, err error) {
		var mu sync.Mutex
		r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Keep: must.Get(cairn.ParsePolicy(keep))(t), Alone: alone}))(t)
		x := must.Get(tensor.New(tensor.Float32, []int64{100_000}))(t)
		x.Contents()[4*step] = byte(step)
		o := &cairn.SaveOptions{Step: &step, Observer: &cairn.Observer{Warned: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			warned = append(warned, err.Error())
		}}}
		if !alone && step > 1 {
			o.Base = &storage.Base{Folder: stepName(int(step - 1))}
		}
		_, err = r.Save(t.Context(), cairn.State{"x": x}, o)
		closeErr := r.Close(t.Context())
		mu.Lock()
		defer mu.Unlock()
		if closeErr != nil {
			warned = append(warned, closeErr.Error())
		}
		return warned, err
	}
	for step := range int64(4) {
		if warned, err := save(step+1, "all"); err != nil || len(warned) > 0 {
			t.Fatal(warned, err)
		}
	}
	for _, step := range []int{1, 2} {
		lock(t, filepath.Join(dir, stepName(step)))
	}
	return dir, save
}

func stepName(step int) string { return fmt.Sprintf("step-%09d", step) }

// lock makes a folder read-only until the test ends.
func lock(t *testing.T, dir string) {
	t.Helper()
	must.Do(t, os.Chmod(dir, 0o555))
	t.Cleanup(func() { _ = os.Chmod(dir, 0o777) })
}

// tree returns the files below a folder, with their contents.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	must.Do(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fmt.Fprintf(&out, "%s %x\n", path, must.Get(os.ReadFile(path))(t))
		return nil
	}))
	return out.String()
}

// readAll fails unless every command and the explorer read the checkpoints of a run.
func readAll(t *testing.T, dir string, steps ...int) {
	t.Helper()
	newest := filepath.Join(dir, stepName(slices.Max(steps)))
	for _, line := range []string{"log " + dir, "latest " + dir, "runs " + filepath.Dir(dir)} {
		if code, out, errOut := execute(t, strings.Fields(line)...); code != 0 || !strings.Contains(out, filepath.Base(newest)) && !strings.HasPrefix(line, "runs") {
			t.Errorf("cairn %s: exit code %d, %s%s", line, code, out, errOut)
		}
	}
	s := serveWeb(t, dir, "--no-cache")
	defer s.end(t)
	for _, step := range steps {
		path := filepath.Join(dir, stepName(step))
		for _, line := range []string{"verify " + path, "inspect " + path, "ls " + path, "digest " + path, "diff " + path + " " + path, "cp " + path + " " + filepath.Join(t.TempDir(), "copy")} {
			if code, _, errOut := execute(t, strings.Fields(line)...); code != 0 {
				t.Errorf("cairn %s: exit code %d, %s", line, code, errOut)
			}
		}
		state, _, err := cairn.LoadNew(t.Context(), must.Get(file.Open(path, nil))(t), nil)
		if err != nil {
			t.Error(err)
			continue
		}
		want := make([]byte, 400_000)
		want[4*step] = byte(step)
		if got := state["x"].(*tensor.Tensor); !bytes.Equal(got.Contents(), want) {
			t.Errorf("step %d has other contents", step)
		}
		var answer struct{ Error struct{ Message string } }
		if got := s.get(t, "/api/names?c="+stepName(step), &answer); got != http.StatusOK {
			t.Errorf("the explorer answers %d, %+v for step %d", got, answer.Error, step)
		}
	}
}

// A job saves with a policy to a run with older checkpoints in read-only folders. These stay
// whole and are reported, the others are removed, and all that stay can be read.
func TestReadOnlyCheckpoints(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprint("alone=", alone), func(t *testing.T) {
			must.AnyUser(t)
			dir, save := readOnlyRun(t, alone)
			var locked []string
			for _, step := range []int{1, 2} {
				locked = append(locked, tree(t, filepath.Join(dir, stepName(step))))
			}
			warned, err := save(5, "last 1")
			if err != nil {
				t.Errorf("Save = %v", err)
			}
			all := strings.Join(warned, "\n")
			code, _, errOut := execute(t, "prune", dir, "--keep", "last 1", "--yes")
			if alone { // others need them otherwise, so that the policy keeps them
				for _, text := range []string{all, errOut} {
					if !strings.Contains(text, stepName(1)) || !strings.Contains(text, stepName(2)) || !strings.Contains(text, "permission denied") {
						t.Errorf("the job or prune prints %q; want steps 1 and 2", text)
					}
				}
				if code == 0 {
					t.Error("prune: exit code 0")
				}
			} else if all != "" || code != 0 {
				t.Errorf("the job prints %q, prune: exit code %d, %q", all, code, errOut)
			}
			for i, step := range []int{1, 2} {
				if tree(t, filepath.Join(dir, stepName(step))) != locked[i] {
					t.Errorf("step %d has changed", step)
				}
			}
			steps := []int{1, 2, 5}
			if !alone {
				steps = []int{1, 2, 3, 4, 5}
			}
			var there []int
			for step := range 7 {
				if _, err := os.Stat(filepath.Join(dir, stepName(step))); err == nil {
					there = append(there, step)
				}
			}
			if !slices.Equal(there, steps) {
				t.Errorf("there are steps %v; want %v", there, steps)
			}
			readAll(t, dir, there...)
		})
	}
}

// A run in which all folders are read-only can be read, and commands that write say so and change
// nothing.
func TestReadOnlyRun(t *testing.T) {
	must.AnyUser(t)
	dir, save := readOnlyRun(t, false)
	for _, step := range []int{3, 4} {
		lock(t, filepath.Join(dir, stepName(step)))
	}
	lock(t, dir)
	before := tree(t, dir)
	readAll(t, dir, 1, 2, 3, 4)
	last := filepath.Join(dir, stepName(4))
	for _, line := range []string{"rm --force " + last, "flatten " + last, "tag " + last + " best", "settings " + dir + " --keep=all"} {
		if code, out, errOut := execute(t, strings.Fields(line)...); code == 0 || !strings.Contains(errOut, "permission denied") {
			t.Errorf("cairn %s: exit code %d, %s%s", line, code, out, errOut)
		}
	}
	if _, err := save(5, "last 1"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("Save = %v; want an error of permissions", err)
	}
	must.Do(t, os.Chmod(dir, 0o600))
	wantCommand(t, 1, "hint: check the owner and the permissions", "ls", last)
	must.Do(t, os.Chmod(dir, 0o500))
	if tree(t, dir) != before {
		t.Error("the run has changed")
	}
}
