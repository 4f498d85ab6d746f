package hf

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// saveSeeded saves in one of the forms.
func saveSeeded(t testing.TB, s blob.Store, form, id string, seed byte) error {
	return storagetest.Save(context.Background(), at(s, forms[form]), storagetest.Storage(id, 1, 1), seeded(t, seed))
}

func mustSaveSeeded(t *testing.T, s blob.Store, form, id string, seed byte) {
	t.Helper()
	if err := saveSeeded(t, s, form, id, seed); err != nil {
		t.Fatal(err)
	}
}

// A save that is killed at any of its operations leaves nothing that a sweep or
// the next save does not remove at once, whatever the forms of the checkpoints.
func TestKilledSavesAreSweptAtOnce(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells runs of a host apart")
	}
	for to := range forms {
		for _, from := range []string{"", "one file", "an index", "distributed"} {
			t.Run(to+" over "+from, func(t *testing.T) {
				t.Parallel()
				for n, killed := 1, true; killed && !t.Failed(); n++ {
					killed = killOnce(t, from, to, n)
				}
			})
		}
	}
}

func killOnce(t *testing.T, from, to string, n int) bool {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "c")
	s, err := file.Open(dir, &file.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if from != "" {
		mustSaveSeeded(t, s, from, "old", 1)
	}
	killed := storagetest.RunKilled(t, dir, to, n)
	if _, err := os.Stat(dir); err != nil {
		return killed // before anything was written
	}
	other := filepath.Join(t.TempDir(), "c")
	if err := os.CopyFS(other, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := publish.Sweep(t.Context(), s, Files(), -1, nil); err != nil {
		t.Error(err)
	} else if got := seedOf(t, s, 1, 2); from != "" && got < 0 {
		t.Error("no checkpoint is left")
	}
	checkOnlyCheckpoint(t, dir, s)
	if s, err = file.Open(other, &file.Options{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	mustSaveSeeded(t, s, to, "next", 3)
	if got := seedOf(t, s, 3); got != 3 {
		t.Errorf("seed %d; want 3", got)
	}
	checkOnlyCheckpoint(t, other, s)
	if t.Failed() {
		t.Logf("killed before operation %d", n)
	}
	return killed
}

// checkOnlyCheckpoint fails unless dir holds the files of its checkpoint and
// nothing else.
func checkOnlyCheckpoint(t *testing.T, dir string, s blob.Store) {
	t.Helper()
	want := []string(nil)
	if c, err := Open(t.Context(), s, nil); err == nil {
		for _, f := range c.Files() {
			want = append(want, f.Name)
		}
		slices.Sort(want)
	} else if !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}
	if got := storagetest.OnDisk(t, dir); !slices.Equal(got, want) {
		t.Errorf("there is %q; want the checkpoint's files only, %q", got, want)
	}
}

// Two killed saves to a new folder, under different names, are an incomplete
// checkpoint, and no obstacle to a save that must not replace one.
func TestTwoUnfinishedSaves(t *testing.T) {
	s, err := file.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		plain := struct{ blob.Store }{s} // without marks
		sv := storagetest.NewSaving(at(plain, forms["distributed"]), storagetest.Storage(id, 1, 1), 1)
		if err := errors.Join(sv.Plan(t.Context(), []plan.State{seeded(t, 1)}), sv.Write(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(t.Context(), s, nil); !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("Open = %v; want %v", err, storage.ErrIncomplete)
	}
	left, err := publish.Leftovers(t.Context(), s, Files())
	if ids := savesIn(left); err != nil || !slices.Equal(ids, []string{"a", "b"}) {
		t.Errorf("Leftovers = files of %q, %v; want those of both saves", ids, err)
	}
	o := *forms["distributed"]
	o.FailIfExists = true
	if err := storagetest.Save(t.Context(), at(s, &o), storagetest.Storage("c", 1, 1), seeded(t, 3)); err != nil {
		t.Errorf("Save = %v", err)
	}
}

// savesIn returns the ids of the saves that files are of.
func savesIn(left []publish.Leftover) []string {
	var out []string
	for _, l := range left {
		out = append(out, l.SaveID)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
