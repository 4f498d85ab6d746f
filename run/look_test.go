package run

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// The folders of ranks inside of a checkpoint are not checkpoints of a run: neither Prune nor
// Remove take a part of it, and Latest returns the whole.
func TestPartsOfACheckpointAreNotARun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	storagetest.CopyFolder(t, filepath.Join("..", "testdata", "fixtures", "torch_checkpointing", "safetensors-4", "ckpt"), dir)
	if ranks := must.Get(filepath.Glob(filepath.Join(dir, "rank_*")))(t); len(ranks) < 2 {
		t.Fatalf("the checkpoint has the folders %q; want some", ranks)
	}
	r := openRun(t, dir, "")
	if got := list(t, r); len(got) != 0 {
		t.Errorf("the checkpoints of a checkpoint are %q; want none", got)
	}
	if rep := must.Get(r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1")}))(t); len(rep.Local) != 0 {
		t.Errorf("Prune: %s; want nothing", outcomes(rep.Local))
	}
	if got, err := r.Remove(t.Context(), []string{"rank_0"}, &RemoveOptions{Force: true}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Remove of a part = %v, %v; want ErrNotFound", got, err)
	}
	if found := must.Get(r.Latest(t.Context()))(t); found.Path != dir {
		t.Errorf("Latest = %s; want %s", found.Path, dir)
	}
	// As a checkpoint of a run, it is one.
	if got := list(t, openRun(t, filepath.Dir(dir), "")); len(got) != 1 || !strings.HasPrefix(got[0], "ckpt ") {
		t.Errorf("the run has %q; want ckpt", got)
	}
}
