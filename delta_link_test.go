package cairn_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// A link to a checkpoint is the checkpoint.
func TestLinkToABase(t *testing.T) {
	dir, s := t.TempDir(), newTrained(t, 10)
	want := saveChain(t, dir, s, 2, 1)
	must.Do(t, os.Symlink("step-0", filepath.Join(dir, "best")))
	link := must.Get(file.Open(filepath.Join(dir, "best"), nil))(t)
	if _, err := formats.Remove(t.Context(), link, nil); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("Remove of a link to a base = %v; want %v", err, storage.ErrInUse)
	}
	checkContents(t, stepAt(t, dir, 1), want[1], s.state, 1)
}

// A checkpoint was moved to another disk, with a link in its place.
func TestLinkToElsewhere(t *testing.T) {
	dir, s := t.TempDir(), newTrained(t, 11)
	want := saveChain(t, dir, s, 3, 1)
	other := filepath.Join(t.TempDir(), "step-1")
	must.Do(t, os.Rename(filepath.Join(dir, "step-1"), other))
	must.Do(t, os.Symlink(other, filepath.Join(dir, "step-1")))
	for i := range 3 {
		checkContents(t, stepAt(t, dir, i), want[i], s.state, 1)
	}
	if _, err := formats.Remove(t.Context(), stepAt(t, dir, 0), nil); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("Remove = %v; want %v", err, storage.ErrInUse)
	}
}
