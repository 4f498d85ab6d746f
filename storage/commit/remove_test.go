package commit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// removeToy removes the objects record, a and b of a store.
func removeToy(ctx context.Context, s blob.Store, o *commit.RemoveOptions) (commit.Removed, error) {
	find := func(ctx context.Context) (*commit.Removal, error) {
		r := &commit.Removal{SaveID: "x", HasRecord: true}
		for _, name := range []string{"record", "a", "b"} {
			info, err := s.Stat(ctx, name)
			if err != nil {
				return nil, errors.Join(storage.ErrNotFound, err)
			}
			r.Files = append(r.Files, commit.RemovedFile{Name: name, Size: info.Size, Version: info.Version})
		}
		return r, nil
	}
	return commit.Remove(ctx, s, find, nothing, o)
}

func nothing(context.Context) (map[string]bool, error) { return nil, nil }

func putToy(t *testing.T, s blob.Store) {
	t.Helper()
	for _, name := range []string{"record", "a", "b", "other"} {
		storagetest.Put(t, s, name, []byte(name))
	}
}

// failing is a service that does not remove many objects.
type failing struct {
	*service
	err error
}

func (s *failing) RemoveAll(context.Context, []string) error { return s.err }

// In a service, a reader takes its lock after a while, or at once if it asks for it, and
// renews it. The lock of a reader that died counts as long as a lease.
func TestReadingInAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{Store: new(mem.Store)}
		putToy(t, s)
		locks := func() int { return len(must.Get(s.Locks(t.Context(), ""))(t)) }
		release := must.Get(commit.Reading(t.Context(), s))(t)
		if locks() != 0 {
			t.Error("Reading takes a lock at once")
		}
		release()
		time.Sleep(2 * commit.LockAfter)
		if locks() != 0 {
			t.Error("a reader that has ended takes a lock")
		}
		release = must.Get(commit.Reading(t.Context(), s))(t)
		now := must.Get(commit.ReadingNow(t.Context(), s))(t)
		if locks() != 1 {
			t.Errorf("there are %d locks; want the one of ReadingNow", locks())
		}
		for range 10 {
			time.Sleep(blob.Lease)
			if _, err := removeToy(t.Context(), s, nil); !errors.Is(err, storage.ErrInUse) || locks() != 2 {
				t.Errorf("Remove = %v with %d locks; want ErrInUse with 2", err, locks())
			}
		}
		release()
		now()
		held := must.Get(s.TryLock(t.Context(), "read-dead", nil))(t) // it never beats
		if _, err := removeToy(t.Context(), s, nil); !errors.Is(err, storage.ErrInUse) {
			t.Errorf("Remove = %v; want ErrInUse", err)
		}
		time.Sleep(blob.Lease)
		must.Get(removeToy(t.Context(), s, nil))(t)
		must.Do(t, held.Release())
	})
}

// A removal that was interrupted in a service is finished when its lease is over. Files that
// were written since, under the same names, stay, and so do files of the checkpoint that is
// there then.
func TestFinishRemovalsInAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{Store: new(mem.Store)}
		putToy(t, s)
		errBulk := errors.New("no bulk")
		if r, err := removeToy(t.Context(), &failing{s, errBulk}, nil); !errors.Is(err, errBulk) || r.Files < 1 {
			t.Fatalf("Remove = %+v, %v; want the record and %v", r, err, errBulk)
		}
		if left := must.Get(commit.RemovalLeftovers(t.Context(), s))(t); len(left) != 2 || left[0].Owner != blob.OwnerAlive || !left[0].Removed {
			t.Errorf("RemovalLeftovers = %+v; want a and b of a living process", left)
		}
		if left := must.Get(commit.FinishRemovals(t.Context(), s, nothing))(t); len(left) > 0 {
			t.Errorf("FinishRemovals of a living process = %+v", left)
		}
		if err := commit.CheckNoRemoval(t.Context(), s); !errors.Is(err, storage.ErrRemoving) {
			t.Errorf("CheckNoRemoval = %v; want ErrRemoving", err)
		}
		if err := commit.Explain(t.Context(), s, storage.ErrIncomplete); !errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrIncomplete) {
			t.Errorf("Explain = %v; want ErrNotFound", err)
		}
		time.Sleep(blob.Lease)
		if left := must.Get(commit.RemovalLeftovers(t.Context(), s))(t); len(left) != 2 || left[0].Owner != blob.OwnerDead {
			t.Errorf("RemovalLeftovers = %+v; want a and b of a dead process", left)
		}
		storagetest.Put(t, s, "a", []byte("another"))
		current := func(context.Context) (map[string]bool, error) { return map[string]bool{"b": true}, nil }
		if left := must.Get(commit.FinishRemovals(t.Context(), s, current))(t); len(left) > 0 {
			t.Errorf("FinishRemovals = %+v; want no file, because all belong to others now", left)
		}
		if names := storagetest.Names(t, s); !slices.Equal(names, []string{"a", "b", "other"}) {
			t.Errorf("there are %q", names)
		}
		must.Do(t, commit.CheckNoRemoval(t.Context(), s))
	})
}

// A removal removes no files if its record was replaced.
func TestRemoveOfAReplacedRecord(t *testing.T) {
	for name, s := range map[string]blob.Store{"memory": new(mem.Store), "service": &service{Store: new(mem.Store)}} {
		putToy(t, s)
		_, err := removeToy(t.Context(), s, &commit.RemoveOptions{Check: func(context.Context) error {
			storagetest.Put(t, s, "record", []byte("of another save"))
			return nil
		}})
		if names := storagetest.Names(t, s); !errors.Is(err, storage.ErrChanged) || len(names) != 4 {
			t.Errorf("%s: Remove = %v, and there are %q; want ErrChanged and all objects", name, err, names)
		}
		if got := must.Get(removeToy(t.Context(), s, nil))(t); got != (commit.Removed{Files: 3, Bytes: 17}) {
			t.Errorf("%s: Remove = %+v; want 3 files of 17 bytes", name, got)
		}
		if names := storagetest.Names(t, s); !slices.Equal(names, []string{"other"}) {
			t.Errorf("%s: there are %q", name, names)
		}
	}
}

// The lock of a removal of very many files can be read.
func TestRemovalOfManyFiles(t *testing.T) {
	s := must.Get(file.Open(t.TempDir(), &file.Options{NoSync: true}))(t)
	storagetest.Put(t, s, "record", []byte("x"))
	info := must.Get(s.Stat(t.Context(), "record"))(t)
	find := func(context.Context) (*commit.Removal, error) {
		r := &commit.Removal{HasRecord: true, Files: []commit.RemovedFile{{Name: "record", Size: 1, Version: info.Version}}}
		for i := range 200_000 {
			r.Files = append(r.Files, commit.RemovedFile{Name: fmt.Sprintf("a file with a name that is quite long %d", i), Version: info.Version})
		}
		return r, nil
	}
	_, err := commit.Remove(t.Context(), s, find, nothing, &commit.RemoveOptions{Check: func(ctx context.Context) error {
		locks := must.Get(s.Locks(ctx, ""))(t)
		var note struct{ Removal commit.Removal }
		if len(locks) != 1 || json.Unmarshal(locks[0].Note, &note) != nil || len(note.Removal.Files) < 10_000 {
			t.Errorf("there are %d locks, the first one with %d files", len(locks), len(note.Removal.Files))
		}
		return nil
	}})
	must.Do(t, err)
}
