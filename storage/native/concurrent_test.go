package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Two saves onto one place, the second starting when the first is held up at
// each of its operations in turn, to be held up itself at each of its own: one
// whole checkpoint is there in the end whatever the order of their steps, and no
// record ever names a file that is missing.
func TestConcurrentSavesLeaveOneCheckpoint(t *testing.T) {
	held := func(n int64) fault.Rule { return fault.Rule{Nth: n, Do: fault.Delay(time.Hour)} }
	for _, versions := range []bool{false, true} {
		for n := range deep.Steps[int64]() {
			var b int64
			for m := range deep.Steps[int64]() {
				if b+1 < m && m > 1 {
					break
				}
				if _, b = runTwo(t, versions, 1, held(n), held(m)); t.Failed() {
					t.Fatalf("versions: %v; one save held up at its operation %d, the other at %d", versions, n, m)
				}
			}
			a, _ := runTwo(t, versions, 0, held(n), held(1000))
			if t.Failed() {
				t.Fatalf("versions: %v; first saves, one held up at its operation %d", versions, n)
			}
			if a < n {
				break
			}
		}
	}
}

// runTwo runs two saves at the same time, each with a fault of its own, and returns how many
// operations each had. In a store with versions, a save that another has overtaken fails and
// leaves no file.
func runTwo(t *testing.T, versions bool, old byte, ra, rb fault.Rule) (a, b int64) {
	synctest.Test(t, func(t *testing.T) {
		inner := new(mem.Store)
		if old != 0 {
			mustSave(t, inner, "old", old)
		}
		watched := &watchedStore{Store: inner, t: t, versions: versions}
		sa, sb := fault.New(watched, ra), fault.New(watched, rb)
		var errA, errB error
		var wg sync.WaitGroup
		wg.Go(func() { errA = save(t, sa, "aa", small(t, 2), nil) })
		wg.Go(func() {
			time.Sleep(time.Minute) // the first one has come to its fault by then
			errB = save(t, sb, "bb", small(t, 3), nil)
		})
		wg.Wait()
		lost := func(err error) bool { return errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrChanged) }
		switch {
		case errA == nil && errB == nil:
		case versions && errA == nil && lost(errB), versions && errB == nil && lost(errA):
			checkOnlyRecord(t, inner)
		default:
			t.Errorf("saves = %v, %v; want both to succeed, or one if there are versions", errA, errB)
		}
		if seed, err := seedOf(t, inner); err != nil || (seed != 2 || errA != nil) && (seed != 3 || errB != nil) {
			t.Errorf("loaded %d, %v; want what one of them saved", seed, err)
		}
		a, b = int64(len(sa.Ops())), int64(len(sb.Ops()))
	})
	return a, b
}

// checkOnlyRecord fails unless s holds the files of its checkpoint and no others.
func checkOnlyRecord(t *testing.T, s blob.Store) {
	t.Helper()
	rec, err := readRecord(t.Context(), s)
	if err != nil {
		t.Error(err)
		return
	}
	want := []string{recordName}
	for _, f := range rec.Files {
		want = append(want, f.Name)
	}
	slices.Sort(want)
	if got := storagetest.Names(t, s); !slices.Equal(got, want) {
		t.Errorf("files %q; want the files of the checkpoint, %q", got, want)
	}
}

// watchedStore checks after every change that the files of the record exist.
type watchedStore struct {
	blob.Store
	t        *testing.T
	versions bool
	mu       sync.Mutex
	text     []byte  // of the record that look has seen last
	rec      *record // decoded
}

// Versions implements [blob.Versioner].
func (s *watchedStore) Versions() bool { return s.versions }

func (s *watchedStore) look(after string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := blob.ReadAll(context.Background(), s.Store, recordName, maxRecordBytes)
	if err == nil && !bytes.Equal(text, s.text) {
		s.text = text
		s.rec, err = decodeRecord(text)
	}
	rec := s.rec
	if err != nil {
		s.text = nil
		if !errors.Is(err, fs.ErrNotExist) {
			s.t.Errorf("after %s: %v", after, err)
		}
		return
	}
	for _, f := range rec.Files {
		if info, err := s.Store.Stat(context.Background(), f.Name); err != nil || info.Size != f.Size {
			s.t.Errorf("after %s the record of %s names %s: %v, %v", after, rec.SaveID, f.Name, info, err)
		}
	}
}

func (s *watchedStore) Remove(ctx context.Context, name string) error {
	err := s.Store.Remove(ctx, name)
	s.look("remove " + name)
	return err
}

func (s *watchedStore) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w, err := s.Store.Create(ctx, name, opts)
	return &watchedWriter{w, s, name}, err
}

type watchedWriter struct {
	blob.Writer
	s    *watchedStore
	name string
}

func (w *watchedWriter) Commit(ctx context.Context) (blob.Info, error) {
	info, err := w.Writer.Commit(ctx)
	w.s.look("commit " + w.name)
	return info, err
}

// The files of a save that lost the race stay until a later save sweeps them.
func TestFilesOfTheLosingSaveAreSwept(t *testing.T) {
	s := struct{ blob.Store }{new(mem.Store)} // without versions
	mustSave(t, s, "old", 1)
	p := at(s, nil, storage.ReadOptions{})
	var both []*storagetest.Saving
	for i, id := range []string{"aa", "bb"} {
		sv := storagetest.NewSaving(p, storagetest.Storage(id, 1, 1), 1)
		must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{small(t, byte(2+i))}), sv.Write(t.Context())))
		both = append(both, sv)
	}
	for _, sv := range both {
		must.Do(t, sv.Finish(t.Context()))
	}
	checkOneOf(t, s, 3)
	must.Do(t, saveTwo(t, s, "later", 9, &options{WriteOptions: storage.WriteOptions{SweepAfter: 1}}))
	checkOneOf(t, s, 9)
	for _, name := range storagetest.Names(t, s) {
		if name != recordName && !strings.HasPrefix(name, "later") {
			t.Errorf("%s is left after a sweep", name)
		}
	}
}

// Each load while saves replace the checkpoint gets the state of one save, or returns
// ErrChanged.
func TestLoadsWhileSavesReplace(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "s0", 0)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for i := range 40 {
			mustSave(t, s, fmt.Sprint("s", i+1), byte(i+1))
		}
	})
	var loaded, changed int
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		_, err := seedOf(t, s)
		switch {
		case err == nil:
			loaded++
		case errors.Is(err, storage.ErrChanged):
			changed++
		default:
			t.Errorf("load = %v; want nil or %v", err, storage.ErrChanged)
		}
	}
	wg.Wait()
	checkSeed(t, s, 40)
	t.Logf("%d loads, %d told that the checkpoint changed", loaded, changed)
	for _, name := range storagetest.Names(t, s) {
		if name != recordName && !strings.HasPrefix(name, "s40") {
			t.Errorf("%s is left", name)
		}
	}
}
