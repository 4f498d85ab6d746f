//go:build unix

package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// readOnly makes folders read-only until the test ends.
func readOnly(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		must.Do(t, os.Chmod(dir, 0o555))
		t.Cleanup(func() { _ = os.Chmod(dir, 0o777) })
	}
}

// A run that cannot be written to is listed and uploaded. Prune fails, and all checkpoints stay.
func TestReadOnlyRun(t *testing.T) {
	must.AnyUser(t)
	local, remote := t.TempDir(), t.TempDir()
	for step := range int64(3) {
		readOnly(t, filepath.Join(local, save(t, local, step)))
	}
	readOnly(t, local)

	if done := must.Get(openRun(t, local, remote).Sync(t.Context(), nil))(t); len(done) != 3 {
		t.Errorf("Sync = %+v; want three uploads", done)
	}
	rep, err := openRun(t, local, "").Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1")})
	if !errors.Is(err, fs.ErrPermission) || rep == nil || rep.Count != 0 {
		t.Errorf("Prune = %+v, %v; want %v", rep, err, fs.ErrPermission)
	}
	if got := list(t, openRun(t, local, remote)); len(got) != 3 || got[0] != FolderName(0)+" both" {
		t.Errorf("there are %q", got)
	}
}

// Checkpoints in folders that cannot be written to stay whole, and do not keep Prune from removing
// the others.
func TestPruneWithReadOnlyFolders(t *testing.T) {
	must.AnyUser(t)
	dir := t.TempDir()
	for step := range int64(5) {
		save(t, dir, step)
	}
	readOnly(t, filepath.Join(dir, FolderName(0)), filepath.Join(dir, FolderName(2)))
	for range 2 {
		rep, err := openRun(t, dir, "").Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1")})
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Prune = %v; want %v", err, fs.ErrPermission)
		}
		for _, x := range rep.Local {
			failed := x.Name == FolderName(0) || x.Name == FolderName(2)
			if failed != (x.Outcome == Failed) || failed == (x.Problem == "") {
				t.Errorf("%+v; want it to fail: %v", x, failed)
			}
		}
		want := []string{FolderName(0) + " local", FolderName(2) + " local", FolderName(4) + " local"}
		if got := list(t, openRun(t, dir, "")); !slices.Equal(got, want) {
			t.Errorf("there are %q; want %q", got, want)
		}
	}
}
