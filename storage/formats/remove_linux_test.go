package formats_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// The environment of a process that removes a checkpoint, or reads it: the folder, and the
// number of the step before which the process is killed. A reader is killed when it has its
// lock.
const (
	removeEnv   = "CAIRN_TEST_REMOVE"
	removeAtEnv = "CAIRN_TEST_REMOVE_AT"
	readEnv     = "CAIRN_TEST_READ"
)

// removeAsChild removes a checkpoint and is killed meanwhile, if this process is such a
// child.
func removeAsChild() {
	kill := func() {
		me, _ := os.FindProcess(os.Getpid())
		_ = me.Kill()
		select {}
	}
	if dir := os.Getenv(readEnv); dir != "" {
		s, err := file.Open(dir, nil)
		if err == nil {
			_, err = commit.Reading(context.Background(), s)
		}
		if err != nil {
			panic(err)
		}
		kill()
	}
	dir := os.Getenv(removeEnv)
	if dir == "" {
		return
	}
	inner, err := file.Open(dir, &file.Options{NoSync: true})
	if err != nil {
		panic(err)
	}
	n, _ := strconv.Atoi(os.Getenv(removeAtEnv))
	s := &stepping{inner: inner, step: func(string) {
		if n--; n == 0 {
			kill()
		}
	}}
	if _, err := formats.Remove(context.Background(), s, nil); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// runChild runs this program with a variable of the environment, and reports whether it was
// killed.
func runChild(t *testing.T, env ...string) (killed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if killed = cmd.ProcessState.ExitCode() == -1; !killed && err != nil || ctx.Err() != nil {
		t.Fatalf("the child = %v:\n%s", err, out)
	}
	return killed
}

// If the process of a removal is killed before any of its steps, the whole checkpoint is
// there, or none. FinishRemovals, clean, the next removal and the next save each put an end
// to it.
func TestKillAtEveryStepOfARemoval(t *testing.T) {
	for name, c := range removables() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := filepath.Join(t.TempDir(), "c")
			c.make(t, source)
			whole, gone := 0, 0
			for _, n := range killSteps(t, source) {
				dir := filepath.Join(t.TempDir(), "c")
				copyFolder(t, source, dir)
				if !runChild(t, removeEnv+"="+dir, removeAtEnv+"="+strconv.Itoa(n)) {
					t.Fatalf("the process has ended before step %d", n)
				}
				if checkAllOrNothing(t, openFolder(t, dir), "step "+strconv.Itoa(n)) {
					whole++
				} else {
					gone++
				}
				if checkEnds(t, name, c, dir); t.Failed() {
					t.Fatalf("killed before step %d", n)
				}
			}
			if deep.On() && (whole < 3 || gone < 2) {
				t.Errorf("the checkpoint was whole %d times and gone %d times: the test saw too little", whole, gone)
			}
		})
	}
}

// killSteps returns the numbers of the steps of a removal of the checkpoint in dir at which
// it is killed: those that change something and the first one. Of many files that go one
// after the other, it returns some. If tests do little, it returns five, others in each run.
func killSteps(t *testing.T, dir string) []int {
	t.Helper()
	to := filepath.Join(t.TempDir(), "c")
	copyFolder(t, dir, to)
	var out, files []int
	n := 0
	s := &stepping{inner: openFolder(t, to), step: func(op string) {
		n++
		switch kind, _, _ := strings.Cut(op, " "); {
		case kind == "remove" && !strings.HasPrefix(op, "remove version") && !strings.HasPrefix(op, "remove folder"):
			files = append(files, n)
		case n == 1 || kind == "remove" || kind == "lock" || kind == "note" || kind == "release":
			out = append(out, n)
		}
	}}
	must.Get(formats.Remove(t.Context(), s, nil))(t)
	if len(files) > 6 {
		files = slices.Concat(files[:3], files[len(files)-3:])
	}
	out = append(out, files...)
	if !deep.On() {
		rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		out = out[:min(5, len(out))]
	}
	return out
}

// copyFolder copies a folder with the times of its files, which are a part of their versions.
func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	must.Do(t, os.CopyFS(to, os.DirFS(from)))
	for _, name := range onDisk(t, from) {
		fi := must.Get(os.Stat(filepath.Join(from, name)))(t)
		must.Do(t, os.Chtimes(filepath.Join(to, name), fi.ModTime(), fi.ModTime()))
	}
}

// checkEnds checks all ways that put an end to an interrupted removal, each in a copy of the
// folder.
func checkEnds(t *testing.T, name string, c removable, dir string) {
	t.Helper()
	whole := checkOpens(t, openFolder(t, dir)) == nil
	if left, err := formats.Leftovers(t.Context(), openFolder(t, dir)); err != nil || slices.ContainsFunc(left, func(l commit.Leftover) bool { return l.Owner != blob.OwnerDead }) || whole && len(left) > 0 {
		t.Errorf("Leftovers = %+v, %v; want files of a dead process", left, err)
	}
	copied := func() (*file.Store, string) {
		to := filepath.Join(t.TempDir(), "c")
		if _, err := os.Stat(dir); err == nil {
			copyFolder(t, dir, to)
		}
		return openFolder(t, to), to
	}
	ends := map[string]func(s blob.Store) error{
		"FinishRemovals": func(s blob.Store) error { _, err := formats.FinishRemovals(t.Context(), s); return err },
		"Clean":          func(s blob.Store) error { _, err := formats.Clean(t.Context(), s, -1); return err },
	}
	for how, end := range ends {
		s, at := copied()
		before := onDisk(t, at)
		must.Do(t, end(s))
		after := onDisk(t, at)
		lockless := slices.DeleteFunc(before, func(name string) bool {
			return filepath.Base(name)[0] == '.' && filepath.Base(name) != ".metadata" && !isRankMetadata(name)
		})
		if whole && !slices.Equal(after, lockless) || !whole && !slices.Equal(after, c.beside) {
			t.Errorf("after %s there are %q; before %q; the checkpoint was whole: %v", how, after, before, whole)
		}
		if now := checkOpens(t, s) == nil; now != whole {
			t.Errorf("after %s there is a checkpoint: %v; before %v", how, now, whole)
		}
	}
	s, at := copied()
	if len(onDisk(t, at)) > 0 { // a process that is killed at its last step leaves an empty folder
		checkRemovedAtLast(t, s, at, c)
	}
	if save := crashes[name]; save != nil {
		s, at := copied()
		if err := save.Save(t.Context(), t, s, "next", 3); err != nil {
			t.Errorf("the next save = %v", err)
			return
		}
		must.Do(t, checkOpens(t, s))
		ck := must.Get(formats.Open(t.Context(), s, nil))(t)
		defer ck.Close()
		if names, files := onDisk(t, at), len(ck.Files())+len(save.Unlisted); len(names) != files {
			t.Errorf("after the next save there are %q; want %d files", names, files)
		}
	}
}

// isRankMetadata reports whether a file is the metadata of a rank of hyper_parallel.
func isRankMetadata(name string) bool {
	ok, _ := filepath.Match(".rank*_metadata", name)
	return ok
}

// The lock of a reader that was killed does not keep a checkpoint, does not hide it, and is
// cleaned.
func TestLocksOfDeadReaders(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *file.Store) bool{
		"Remove": func(t *testing.T, s *file.Store) bool {
			must.Get(formats.Remove(t.Context(), s, nil))(t)
			return false
		},
		"Clean": func(t *testing.T, s *file.Store) bool {
			must.Get(formats.Clean(t.Context(), s, -1))(t)
			return true
		},
		"a save": func(t *testing.T, s *file.Store) bool {
			must.Do(t, crashes["native"].Save(t.Context(), t, s, "b", 2))
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c")
			must.Do(t, saveCrash(t, crashes["native"], dir, "a", 1))
			if !runChild(t, readEnv+"="+dir) {
				t.Fatal("the reader was not killed")
			}
			s := openFolder(t, dir)
			locks := func() int { return len(must.Get(s.Locks(t.Context(), ""))(t)) }
			if locks() != 1 {
				t.Fatalf("there are %d locks; want the one of the reader", locks())
			}
			must.Do(t, errors.Join(checkOpens(t, s), commit.CheckUnderWay(t.Context(), s)))
			stays := end(t, s)
			if opens := checkOpens(t, s); stays != (opens == nil) || !stays && !errors.Is(opens, storage.ErrNotFound) || locks() != 0 {
				t.Errorf("Open = %v, and there are %d locks", opens, locks())
			}
		})
	}
}
