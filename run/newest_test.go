package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

func TestNewest(t *testing.T) {
	dir := t.TempDir()
	r := openRun(t, dir, "")
	for _, step := range []int64{1, 2, 9, 10} {
		save(t, dir, step)
	}
	must.Do(t, os.MkdirAll(filepath.Join(dir, "logs"), 0o777))
	must.Do(t, os.RemoveAll(filepath.Join(dir, FolderName(11))))
	// A save that did not finish, and one of which a file is gone.
	must.Do(t, os.Mkdir(filepath.Join(dir, FolderName(12)), 0o777))
	save(t, dir, 11)
	for _, name := range must.Get(filepath.Glob(filepath.Join(dir, FolderName(11), "*.safetensors")))(t) {
		must.Do(t, os.Remove(name))
	}
	at := func(n int64) *int64 { return &n }
	for claim, c := range map[string]struct {
		Bounds
		want int64 // -1: not found
	}{
		"no bounds":            {Bounds{}, 10},
		"before":               {Bounds{Before: at(10)}, 9},
		"after":                {Bounds{After: at(9)}, 10},
		"one":                  {Bounds{After: at(1), Before: at(3)}, 2},
		"nothing between":      {Bounds{After: at(2), Before: at(9)}, -1},
		"nothing later":        {Bounds{After: at(10)}, -1},
		"the format is named":  {Bounds{Format: native.Format{}}, 10},
		"another format":       {Bounds{Format: torchdcp.Format{}}, -1},
		"damaged and the rest": {Bounds{After: at(9), Before: at(13)}, 10},
	} {
		got, err := r.Newest(t.Context(), c.Bounds)
		switch {
		case c.want < 0 && err == nil:
			t.Errorf("%s: Newest = %+v; want an error", claim, got)
		case c.want < 0 && !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrCorrupt):
			t.Errorf("%s: Newest = %v; want ErrNotFound or ErrCorrupt", claim, err)
		case c.want >= 0 && (err != nil || *got.Step != c.want || got.Path != filepath.Join(dir, FolderName(c.want))):
			t.Errorf("%s: Newest = %+v, %v; want %d", claim, got, err, c.want)
		}
	}
	if _, err := openRun(t, filepath.Join(dir, "nothing"), "").Newest(t.Context(), Bounds{}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("a run that does not exist: %v; want ErrNotFound", err)
	}
}

// Newest names the damaged checkpoints that it has passed over, and not those that are merely
// incomplete or older.
func TestNewestNamesDamagedOnes(t *testing.T) {
	dir := t.TempDir()
	r := openRun(t, dir, "")
	for step := range int64(9) {
		save(t, dir, step)
	}
	removed := func(step int64, pattern string) {
		t.Helper()
		for _, name := range must.Get(filepath.Glob(filepath.Join(dir, FolderName(step), pattern)))(t) {
			must.Do(t, os.Remove(name))
		}
	}
	truncated := func(step int64, pattern string) {
		t.Helper()
		for _, name := range must.Get(filepath.Glob(filepath.Join(dir, FolderName(step), pattern)))(t) {
			must.Do(t, os.Truncate(name, 10))
		}
	}
	removed(2, "*.safetensors") // older
	removed(5, "*.safetensors")
	truncated(6, "*-index.cairn")
	removed(7, "cairn.json") // as a save that did not finish
	truncated(8, "cairn.json")
	at := func(n int64) *int64 { return &n }
	for claim, c := range map[string]struct {
		Bounds
		want    int64
		damaged []int64
	}{
		"all":    {Bounds{}, 4, []int64{8, 6, 5}},
		"before": {Bounds{Before: at(6)}, 4, []int64{5}},
		"older":  {Bounds{Before: at(4)}, 3, nil},
	} {
		got, err := r.Newest(t.Context(), c.Bounds)
		if err != nil || *got.Step != c.want || len(got.Damaged) != len(c.damaged) {
			t.Fatalf("%s: Newest = %+v, %v; want step %d, and damaged %v", claim, got, err, c.want, c.damaged)
		}
		for i, d := range got.Damaged {
			if d.Step != c.damaged[i] || d.Name != FolderName(d.Step) || !errors.Is(d.Err, storage.ErrCorrupt) {
				t.Errorf("%s: damaged is %+v; want step %d", claim, d, c.damaged[i])
			}
		}
	}
	for _, step := range []int64{5, 6, 8} {
		if _, err := r.Newest(t.Context(), Bounds{After: at(step - 1), Before: at(step + 1)}); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), FolderName(step)) {
			t.Errorf("step %d: %v; want ErrCorrupt of its folder", step, err)
		}
	}
	// If a name has another number than the checkpoint, all are opened.
	saveIn(t, openDir(t, dir, "copy-3"), native.Format{}, "copy", 4)
	if got, err := r.Newest(t.Context(), Bounds{Before: at(8)}); err != nil || *got.Step != 4 || len(got.Damaged) != 2 || got.Damaged[0].Step != 6 {
		t.Errorf("Newest = %+v, %v; want step 4, and 6 and 5 damaged", got, err)
	}
}

// Steps that a checkpoint records count, and the numbers of names if it records none.
func TestNewestByRecordedSteps(t *testing.T) {
	dir := t.TempDir()
	r := openRun(t, dir, "")
	saveIn(t, openDir(t, dir, "b"), native.Format{}, "b", 7)
	saveIn(t, openDir(t, dir, "a"), native.Format{}, "a", 5)
	if got, err := r.Newest(t.Context(), Bounds{}); err != nil || *got.Step != 7 {
		t.Errorf("names without numbers: %+v, %v; want step 7", got, err)
	}
	saveIn(t, openDir(t, dir, "iter_0006"), torchdcp.Format{}, "one", -1)
	if got, err := r.Newest(t.Context(), Bounds{Before: new(int64(7))}); err != nil || *got.Step != 6 {
		t.Errorf("a number in a name: %+v, %v; want step 6", got, err)
	}
	dir = t.TempDir()
	r = openRun(t, dir, "")
	saveIn(t, openDir(t, dir, "epoch-1"), native.Format{}, "e1", 100)
	saveIn(t, openDir(t, dir, "epoch-2"), native.Format{}, "e2", 50)
	if got, err := r.Newest(t.Context(), Bounds{}); err != nil || *got.Step != 100 {
		t.Errorf("other numbers in names: %+v, %v; want step 100", got, err)
	}
	saveIn(t, openDir(t, dir, "final"), torchdcp.Format{}, "one", -1) // it has no step
	if got, err := r.Newest(t.Context(), Bounds{}); err != nil || *got.Step != 100 {
		t.Errorf("a checkpoint without a step: %+v, %v; want step 100", got, err)
	}
}

// Newest opens all checkpoints once, and then only new ones and the one that it returns.
func TestNewestOpensFew(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(20) {
		save(t, dir, step)
	}
	r := openRun(t, dir, "")
	store := fault.New(r.Local.Store)
	r.Local = &Place{Store: store, address: "objects://run"}
	got, err := r.Newest(t.Context(), Bounds{})
	if err != nil || *got.Step != 19 || got.Path != blob.JoinAddress("objects://run", FolderName(19)) {
		t.Fatalf("Newest = %+v, %v; want step 19", got, err)
	}
	save(t, dir, 20)
	before := store.Ops().Count(fault.Open)
	if got, err := r.Newest(t.Context(), Bounds{}); err != nil || *got.Step != 20 {
		t.Fatalf("Newest = %+v, %v; want step 20", got, err)
	}
	if n := store.Ops().Count(fault.Open) - before; n > 7 {
		t.Errorf("%d files were opened; want those of one checkpoint", n)
	}
}
