package commit_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// journalled begins a save of one rank with a journal, which replaces no checkpoint.
func journalled(t *testing.T, s blob.Store, id string, j storage.Journal) (*commit.Committer, error) {
	t.Helper()
	p := commit.New(s, toy, storage.WriteOptions{FailIfExists: true})
	sess := session(0, id)
	sess.Size, sess.Journal = 1, j
	return p, errors.Join(p.SetUp(t.Context(), sess), prepare(t, p))
}

// A save with a journal in a service has a lock while it is under way, and the id of the
// save in its names. When it fails, it keeps its files and releases its lock. The next run
// uses the files, and a run after the commit repeats it. Another save is refused then.
func TestJournalledSaveInAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, j := &service{Store: new(mem.Store)}, new(storagetest.Journal)
		first, err := journalled(t, s, "one", j)
		must.Do(t, err)
		write(t, first)
		time.Sleep(commit.LockAfter + time.Second)
		if owner, _, err := commit.OwnerOf(t.Context(), s, "one"); owner != blob.OwnerAlive || err != nil {
			t.Errorf("OwnerOf while the save is under way = %v, %v", owner, err)
		}
		must.Do(t, first.Abort(t.Context()))
		if owner, _, err := commit.OwnerOf(t.Context(), s, "one"); owner != blob.OwnerUnknown || err != nil || len(s.locks) > 0 {
			t.Errorf("OwnerOf after the failure = %v, %v, with the locks %v", owner, err, s.locks)
		}
		wantFiles(t, s.Store, "d0.one")
		for run := range 2 {
			p, err := journalled(t, s, "one", j)
			must.Do(t, err)
			results := []*storage.WriteResults{write(t, p)}
			must.Do(t, p.Commit(t.Context(), record("d0.one"), results, commit.File{Name: "d1.one", Data: []byte("index")}))
			wantFiles(t, s.Store, "d0.one", "d1.one", "record")
			if j.Found() != run+1 {
				t.Errorf("%d files were known in %d runs", j.Found(), run+1)
			}
		}
		if _, err := journalled(t, s, "two", new(storagetest.Journal)); !errors.Is(err, storage.ErrExists) {
			t.Errorf("another save = %v; want ErrExists", err)
		}
	})
}

// Without a finished file, a save with a journal that fails removes its files.
func TestJournalledSaveWithoutFinishedFiles(t *testing.T) {
	s := new(mem.Store)
	p, err := journalled(t, s, "one", new(storagetest.Journal))
	must.Do(t, err)
	storagetest.Put(t, s, "d7.one", []byte("of another process, which has not noted it"))
	must.Do(t, p.Abort(t.Context()))
	wantFiles(t, s)
}
