package file

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// watched returns a store in dir with a hook that notes each step and fails
// the one that has the number fail, from 1.
func watched(t *testing.T, dir string, opts *Options, fail int, err error) (*Store, *[]string) {
	t.Helper()
	s, oerr := Open(dir, opts)
	if oerr != nil {
		t.Fatal(oerr)
	}
	steps := new([]string)
	s.hook = func(step string) error {
		*steps = append(*steps, strings.ReplaceAll(step, filepath.Dir(dir), ""))
		if len(*steps) == fail {
			return err
		}
		return nil
	}
	return s, steps
}

// TestOrderOfSteps pins the order of syncs: the file before its name, and the directories
// above it before Commit returns.
func TestOrderOfSteps(t *testing.T) {
	s, steps := watched(t, filepath.Join(t.TempDir(), "store"), nil, 0, nil)
	for _, name := range []string{"a/b/x", "a/b/y"} {
		if _, err := blob.WriteAll(t.Context(), s, name, []byte("hello"), nil); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"mkdir", "syncdir ", "temp", "reserve", "write", "sync",
		"syncdir /store/a", "syncdir /store", "syncdir ", "publish", "syncdir /store/a/b",
		"mkdir", "temp", "reserve", "write", "sync", "publish", "syncdir /store/a/b", // the way is known by now
	}
	if diff := cmp.Diff(want, *steps); diff != "" {
		t.Errorf("steps, -want +got:\n%s", diff)
	}
}

func TestDirectoriesAreSyncedAgainAfterRemoval(t *testing.T) {
	s, steps := watched(t, filepath.Join(t.TempDir(), "store"), nil, 0, nil)
	for range 2 {
		*steps = nil
		if _, err := blob.WriteAll(t.Context(), s, "a/x", nil, nil); err != nil {
			t.Fatal(err)
		}
		must.Do(t, s.Remove(t.Context(), "a/x"))
		if !strings.Contains(strings.Join(*steps, ","), "syncdir /store,syncdir ,publish") {
			t.Errorf("steps = %q; want the way to a/ synced", *steps)
		}
	}
}

func TestNoSyncSyncsNothing(t *testing.T) {
	s, steps := watched(t, filepath.Join(t.TempDir(), "store"), &Options{NoSync: true}, 0, nil)
	if _, err := blob.WriteAll(t.Context(), s, "a/x", nil, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"mkdir", "temp", "sync", "publish"}, *steps); diff != "" {
		t.Errorf("steps, -want +got:\n%s", diff)
	}
}

// TestEveryStepMayFail fails each step in turn, of a replacement and of a new
// object: no trace is left, and the older object stays.
func TestEveryStepMayFail(t *testing.T) {
	for name, errno := range map[string]syscall.Errno{"x": syscall.ENOSPC, "a/b": syscall.EACCES} {
		for n := 1; !failStep(t, name, n, errno); n++ {
		}
	}
}

// failStep writes name with a failure at step n, and reports whether there
// were fewer steps.
func failStep(t *testing.T, name string, n int, errno syscall.Errno) bool {
	dir := filepath.Join(t.TempDir(), "store")
	must.Do(t, errors.Join(os.Mkdir(dir, 0o777), os.WriteFile(filepath.Join(dir, "x"), []byte("old"), 0o666)))
	s, steps := watched(t, dir, nil, n, errno)
	data := blob.AlignedBytes(2<<20 + 5)
	_, err := blob.WriteAll(t.Context(), s, name, data, &blob.CreateOptions{Piece: 1 << 20})
	if err == nil {
		return true
	}
	last := (*steps)[len(*steps)-1]
	where := fmt.Sprintf("%v at step %d of %q, %s", errno, n, name, last)
	if !errors.Is(err, errno) || errno == syscall.EACCES && !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%s: WriteAll = %v; want it wrapped", where, err)
	}
	want := []string{"x"}
	published := strings.HasPrefix(last, "syncdir") && (*steps)[len(*steps)-2] == "publish"
	if published && name != "x" {
		want = []string{"a", "x"} // the one failure that comes too late
	}
	if diff := cmp.Diff(want, entries(t, dir)); diff != "" {
		t.Errorf("%s: the directory, -want +got:\n%s", where, diff)
	}
	got, err := os.ReadFile(filepath.Join(dir, "x"))
	if err != nil || string(got) != "old" && !(published && bytes.Equal(got, data)) {
		t.Errorf("%s: x = %.10q, %v; want old", where, got, err)
	}
	return false
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	es := must.Get(os.ReadDir(dir))(t)
	names := []string{}
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names
}
