package native

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// checkOnlyCheckpoint fails unless dir holds the files of its checkpoint and
// nothing else.
func checkOnlyCheckpoint(t *testing.T, dir string, s blob.Store) {
	t.Helper()
	want := []string(nil)
	if rec, err := readRecord(t.Context(), s); err == nil {
		want = append(rec.names(), recordName)
		slices.Sort(want)
	} else if !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}
	if got := storagetest.OnDisk(t, dir); !slices.Equal(got, want) {
		t.Errorf("there is %q; want the checkpoint's files only, %q", got, want)
	}
}

// A save that is killed at any of its operations leaves nothing that a sweep or
// the next save does not remove at once.
func TestKilledSavesAreSweptAtOnce(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells runs of a host apart")
	}
	for n, killed := 1, true; killed; n++ {
		for _, first := range []bool{true, false} {
			dir := filepath.Join(t.TempDir(), "c")
			s, err := file.Open(dir, &file.Options{NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			if !first {
				mustSave(t, s, "old", 1)
			}
			killed = storagetest.RunKilled(t, dir, "", n)
			if _, err := os.Stat(dir); err != nil {
				continue // killed before anything was written
			}
			if n%2 == 0 {
				mustSave(t, s, "next", 3)
				checkSeed(t, s, 3)
			} else if _, err := publish.Sweep(t.Context(), s, Files(), -1, nil); err != nil {
				t.Error(err)
			} else if !first {
				checkOneOf(t, s, 1, 2)
			}
			checkOnlyCheckpoint(t, dir, s)
			if t.Failed() {
				t.Fatalf("killed before operation %d, first save %v", n, first)
			}
		}
	}
}

// Savers that race for one place leave the files of one checkpoint.
func TestRacingSavesLeaveOneCheckpoint(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells runs of a host apart")
	}
	dir := t.TempDir()
	var wg sync.WaitGroup
	for saver := range 3 {
		s, err := file.Open(dir, &file.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for i := range 15 {
				if err := saveTwo(t, s, fmt.Sprintf("s%d-%d", saver, i), byte(saver+1), nil); err != nil {
					t.Errorf("saver %d, save %d: %v", saver, i, err)
				}
			}
		})
	}
	wg.Wait()
	s, err := file.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkOneOf(t, s, 1, 2, 3)
	checkOnlyCheckpoint(t, dir, s)
}

// A repair beside a living save refuses. If it cannot tell, the save that fails
// for it spares the files that the new record names.
func TestRepairBesideASave(t *testing.T) {
	for name, c := range map[string]struct {
		locks bool
		want  error
	}{"with locks": {true, blob.ErrLocked}, "without": {false, nil}} {
		t.Run(name, func(t *testing.T) {
			s := stores["file"](t)
			if !c.locks {
				s = struct{ blob.Store }{s}
			} else if runtime.GOOS == "windows" {
				t.Skip("locks cannot be read there")
			}
			sv := storagetest.NewSaving(at(s, nil, nil), storagetest.Storage("first", 1, 1), 1)
			if err := errors.Join(sv.Plan(t.Context(), []plan.State{small(t, 1)}), sv.Write(t.Context())); err != nil {
				t.Fatal(err)
			}
			if _, err := Repair(t.Context(), s, nil); !errors.Is(err, c.want) {
				t.Errorf("Repair = %v; want %v", err, c.want)
			}
			finish := sv.Finish(t.Context())
			if c.locks != (finish == nil) {
				t.Errorf("Finish = %v", finish)
			}
			if finish != nil {
				if err := sv.Abort(t.Context()); err != nil {
					t.Error(err)
				}
			}
			checkSeed(t, s, 1)
			checkWhole(t, s)
		})
	}
}

// interferingStore lets a save replace the checkpoint at an operation.
type interferingStore struct {
	blob.Store
	at      func(op, name string) bool
	replace func()
	once    sync.Once
}

func (s *interferingStore) Open(ctx context.Context, name string) (blob.Reader, error) {
	s.look("open", name)
	return s.Store.Open(ctx, name)
}

func (s *interferingStore) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	s.look("list", prefix)
	return s.Store.List(ctx, prefix)
}

func (s *interferingStore) look(op, name string) {
	if s.at(op, name) {
		s.once.Do(s.replace)
	}
}

// A checkpoint that is replaced meanwhile is neither damaged nor gone.
func TestVerifyAndRepairOfACheckpointThatIsReplaced(t *testing.T) {
	inner := stores["mem"](t)
	mustSave(t, inner, "first", 1)
	var opened atomic.Int64
	s := &interferingStore{Store: inner, replace: func() { mustSave(t, inner, "second", 2) }}
	s.at = func(_, name string) bool { // the scan of a data file is over, its header is next
		return strings.HasSuffix(name, dataSuffix) && opened.Add(1) == 2
	}
	c, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Verify(t.Context(), nil); !errors.Is(err, storage.ErrChanged) {
		t.Errorf("Verify = %v; want %v", err, storage.ErrChanged)
	}

	for i, at := range []func(op, name string) bool{
		func(op, name string) bool { return op == "open" && strings.HasSuffix(name, indexSuffix) },
		func(op, _ string) bool { return op == "list" },
	} {
		id := fmt.Sprintf("later-%d", i)
		later := &interferingStore{Store: inner, at: at, replace: func() { mustSave(t, inner, id, 3) }}
		rep, err := Repair(t.Context(), later, nil)
		if err != nil || rep.Rebuilt || rep.SaveID != id {
			t.Errorf("Repair = %+v, %v; want nothing to do for save %s", rep, err, id)
		}
	}
}
