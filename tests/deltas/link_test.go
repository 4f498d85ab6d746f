package deltas

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// A link to a checkpoint is the checkpoint.
func TestLinkToABase(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 10)
	want := jobtest.SaveChain(t, dir, s, 2, 1)
	must.Do(t, os.Symlink("step-0", filepath.Join(dir, "best")))
	link := must.Get(file.Open(filepath.Join(dir, "best"), nil))(t)
	if _, err := formats.Remove(t.Context(), link, nil); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("Remove of a link to a base = %v; want %v", err, storage.ErrInUse)
	}
	checkContents(t, stepAt(t, dir, 1), want[1], s.State, 1)
}

// A checkpoint was moved to another disk, with a link in its place.
func TestLinkToElsewhere(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 11)
	want := jobtest.SaveChain(t, dir, s, 3, 1)
	other := filepath.Join(t.TempDir(), "step-1")
	must.Do(t, os.Rename(filepath.Join(dir, "step-1"), other))
	must.Do(t, os.Symlink(other, filepath.Join(dir, "step-1")))
	for i := range 3 {
		checkContents(t, stepAt(t, dir, i), want[i], s.State, 1)
	}
	if _, err := formats.Remove(t.Context(), stepAt(t, dir, 0), nil); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("Remove = %v; want %v", err, storage.ErrInUse)
	}
}

// A run has links to its checkpoints, as many programs make them. A policy does not remove
// a checkpoint by a link to it.
func TestPruneWithLinks(t *testing.T) {
	for _, name := range []string{"best", "zlast"} { // before and after the names of checkpoints
		for _, target := range []int{0, 1} {
			dir, s := t.TempDir(), jobtest.NewTrained(t, 16)
			want := jobtest.SaveChain(t, dir, s, 2, 1)
			must.Do(t, os.Symlink(fmt.Sprintf("step-%d", target), filepath.Join(dir, name)))
			r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Keep: must.Get(cairn.ParsePolicy("last 1"))(t)}))(t)
			rep := must.Get(r.Prune(t.Context(), nil))(t)
			must.Do(t, r.Close(t.Context()))
			for i := range 2 {
				if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("step-%d", i), "cairn.json")); err != nil {
					t.Errorf("with the link %s to step-%d: %v: %+v", name, target, err, rep)
					continue
				}
				checkContents(t, stepAt(t, dir, i), want[i], s.State, 1)
			}
		}
	}
}

// A run begins with a link to a checkpoint of another run, which a policy does not remove.
func TestPruneWithALinkToAnotherRun(t *testing.T) {
	first, dir, s := t.TempDir(), t.TempDir(), jobtest.NewTrained(t, 17)
	want := jobtest.SaveChain(t, first, s, 1, 1)
	must.Do(t, os.Symlink(filepath.Join(first, "step-0"), filepath.Join(dir, "init")))
	r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Keep: must.Get(cairn.ParsePolicy("last 1"))(t), Alone: true}))(t)
	must.Get(r.Save(t.Context(), s.Parts(t, 0, 1), &cairn.SaveOptions{Step: new(int64(1))}))(t)
	must.Get(r.Prune(t.Context(), nil))(t)
	must.Do(t, r.Close(t.Context()))
	checkContents(t, stepAt(t, first, 0), want[0], s.State, 1)
	all := must.Get(r.Checkpoints(t.Context()))(t)
	if len(all) != 2 || all[0].Name != "init" {
		t.Errorf("the run has %+v; want init and the checkpoint of step 1", all)
	}
}

// A link to a checkpoint of the run is not uploaded as a second one.
func TestSyncWithALink(t *testing.T) {
	dir, remote, s := t.TempDir(), t.TempDir(), jobtest.NewTrained(t, 19)
	jobtest.SaveChain(t, dir, s, 1, 1)
	must.Do(t, os.Symlink("step-0", filepath.Join(dir, "latest")))
	r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remote: remote}))(t)
	defer r.Close(t.Context())
	must.Get(r.Sync(t.Context()))(t)
	if _, err := os.Stat(filepath.Join(remote, "latest")); err == nil {
		t.Error("latest was uploaded")
	}
	if _, err := os.Stat(filepath.Join(remote, "step-0", "cairn.json")); err != nil {
		t.Error(err)
	}
}
