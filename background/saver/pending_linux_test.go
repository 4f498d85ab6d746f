package saver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// underWay reports whether a save to a folder is under way.
func underWay(t *testing.T, folder string) bool {
	t.Helper()
	store, err := file.Open(folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = commit.CheckUnderWay(t.Context(), store)
	if err != nil && !errors.Is(err, storage.ErrUnderWay) {
		t.Fatal(err)
	}
	return err != nil
}

// settled waits until the saver has handled all messages so far: it answers a load of a
// folder without a checkpoint.
func (c *trainer) settled() {
	c.Helper()
	c.send(typeLoad, loadBody{Load: 99, source: source{Store: c.TempDir()}, Items: []wantBody{{Name: "w"}}})
	if b := received[failedBody](c, typeFailed); b.Load != 99 {
		c.Fatalf("failed: %+v", b)
	}
}

// TestServeLocksPendingSaves has two saves in the queue of a saver. Both are under way for
// other processes, although the second one has not begun, until they are over.
func TestServeLocksPendingSaves(t *testing.T) {
	c := newTrainer(t)
	c.join()
	first, second := filepath.Join(t.TempDir(), "step-1"), filepath.Join(t.TempDir(), "step-2")
	fetch := c.hold(1, first)
	c.send(typeSave, newSave(2, second))
	c.send(typeStaged, stagedBody{Generation: 2, Units: []unitBody{c.stage(2, 8192)}, All: true})
	c.settled()
	if !underWay(t, first) || !underWay(t, second) {
		t.Errorf("under way: %v, %v; want both", underWay(t, first), underWay(t, second))
	}
	c.send(typeFetched, fetchedBody{Fetch: fetch.Fetch, Error: new(newErrorBody(errors.New("it is lost")))})
	if b := received[failedBody](c, typeFailed); b.Generation != 1 {
		t.Fatalf("failed: %+v", b)
	}
	if underWay(t, first) {
		t.Error("the failed save is under way")
	}
	if b := received[savedBody](c, typeSaved); b.Generation != 2 {
		t.Fatalf("saved: %+v", b)
	}
	if underWay(t, second) || published(t, second) != content {
		t.Errorf("the save that is over: under way: %v, with %q", underWay(t, second), published(t, second))
	}
	c.conn.Close()
	if err := c.wait(); err != nil {
		t.Error(err)
	}
}

// TestServeLeavesNoLocks ends the trainer before its states are staged: neither the locks
// nor the folders stay.
func TestServeLeavesNoLocks(t *testing.T) {
	c := newTrainer(t)
	c.join()
	dir := t.TempDir()
	c.hold(1, filepath.Join(dir, "step-1"))
	c.send(typeSave, newSave(2, filepath.Join(dir, "step-2")))
	odd := newSave(3, filepath.Join(dir, "step-3"))
	odd.SaveID = "a/b"
	c.send(typeSave, odd)
	c.conn.Close()
	if err := c.wait(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left in %s, %v", left, dir, err)
	}
}
