package formats_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

const (
	dirEnv    = "CAIRN_TEST_DIR"
	formatEnv = "CAIRN_TEST_FORMAT"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirEnv); dir != "" {
		writeAndDie(dir, os.Getenv(formatEnv))
	}
	removeAsChild()
	storagetest.RunAsChild(crashes)
	os.Exit(m.Run())
}

// writeAndDie writes the data files of a save, begins another file, and kills the
// process.
func writeAndDie(dir, format string) {
	var t testing.T
	s, err := file.Open(dir, nil)
	if err != nil {
		panic(err)
	}
	sv := newSaving(&t, s, format, "killed")
	state := stateOf(&t, 1)
	if err := errors.Join(sv.Plan(context.Background(), []plan.State{state}), sv.Write(context.Background())); err != nil {
		panic(err)
	}
	if _, err := s.Create(context.Background(), "begun", nil); err != nil {
		panic(err)
	}
	me, _ := os.FindProcess(os.Getpid())
	_ = me.Kill()
	select {}
}

// Clean removes the files of a killed save, also if there is no checkpoint. It keeps files
// that cairn did not write.
func TestCleanRemovesFilesOfKilledSaves(t *testing.T) {
	for _, format := range []string{formats.Native, formats.TorchDCP, formats.Hyper, formats.HF, hfIndex, hfDistributed} {
		for _, first := range []bool{true, false} {
			dir := t.TempDir()
			s := must.Get(file.Open(dir, nil))(t)
			storagetest.Put(t, s, "notes.txt", []byte("mine"))
			if !first {
				state := stateOf(t, 2)
				must.Do(t, newSaving(t, s, format, "good").Run(t.Context(), []plan.State{state}))
			} else {
				storagetest.Put(t, s, "__7_0.distcp", []byte("of PyTorch"))
			}
			want := inFolder(t, dir)
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), dirEnv+"="+dir, formatEnv+"="+format)
			if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != -1 {
				t.Fatalf("the child = %v:\n%s", err, out)
			}
			left, err := formats.Leftovers(t.Context(), s)
			if err != nil || len(left) < 2 || slices.ContainsFunc(left, isAlive) {
				t.Errorf("%s: Leftovers = %+v, %v; want what was written and what was begun", format, left, err)
			}
			removed, err := formats.Clean(t.Context(), s, -1)
			if err != nil || len(removed) < 2 {
				t.Errorf("%s: Clean = %+v, %v", format, removed, err)
			}
			if got := inFolder(t, dir); !slices.Equal(got, want) {
				t.Errorf("%s, first save %v: there is %q; want %q", format, first, got, want)
			}
		}
	}
}

func isAlive(l commit.Leftover) bool { return l.Owner == blob.OwnerAlive }

func inFolder(t *testing.T, dir string) []string {
	t.Helper()
	paths := must.Get(filepath.Glob(filepath.Join(dir, "*")))(t)
	hidden := must.Get(filepath.Glob(filepath.Join(dir, ".*")))(t)
	return append(paths, hidden...)
}
