package commit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
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

// service is a store like an object storage service: with locks that go by the time of
// their last beat. While mute is true, it keeps the write of the record without an answer.
type service struct {
	*mem.Store
	mute bool

	mu    sync.Mutex
	locks map[string]blob.Lock // guarded by mu
	late  []func()             // guarded by mu; writes that were kept
}

func (s *service) ReadGap() int64 { return 1 }

func (s *service) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	w, err := s.Store.Create(ctx, name, o)
	if err == nil && name == "record" && s.mute {
		w = &muteWriter{w, s}
	}
	return w, err
}

type muteWriter struct {
	blob.Writer
	s *service
}

func (w *muteWriter) Commit(context.Context) (blob.Info, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.late = append(w.s.late, func() { w.Writer.Commit(context.Background()) })
	return blob.Info{}, fmt.Errorf("%w: no answer", blob.ErrUncertain)
}

func (w *muteWriter) Abort() error { return nil }

// land carries out the writes that were kept.
func (s *service) land() {
	for _, write := range s.late {
		write()
	}
}

func (s *service) TryLock(_ context.Context, name string, note []byte) (blob.HeldLock, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.locks[name]; ok && time.Since(l.ModTime) < blob.Lease {
		return nil, blob.ErrLocked
	}
	if s.locks == nil {
		s.locks = map[string]blob.Lock{}
	}
	s.locks[name] = blob.Lock{Name: name, Note: note, ModTime: time.Now()}
	return &serviceLock{s, name}, nil
}

func (s *service) Locks(context.Context, string) ([]blob.Lock, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []blob.Lock
	for _, l := range s.locks {
		if time.Since(l.ModTime) < blob.Lease {
			l.Owner = blob.OwnerAlive
		}
		out = append(out, l)
	}
	return out, nil
}

type serviceLock struct {
	s    *service
	name string
}

func (l *serviceLock) change(fn func(*blob.Lock)) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	held, ok := l.s.locks[l.name]
	if !ok {
		return blob.ErrLocked
	}
	held.ModTime = time.Now()
	fn(&held)
	l.s.locks[l.name] = held
	return nil
}

func (l *serviceLock) SetNote(note []byte) error {
	return l.change(func(held *blob.Lock) { held.Note = note })
}
func (l *serviceLock) Beat(context.Context) error { return l.change(func(*blob.Lock) {}) }
func (l *serviceLock) Leave() error               { return nil }
func (l *serviceLock) Release() error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	delete(l.s.locks, l.name)
	return nil
}

// uncertain saves to s, which does not answer the write of the record.
func uncertain(t *testing.T, s *service, id string) {
	t.Helper()
	s.mute = true
	ps := begin(t, s, id, storage.WriteOptions{})
	results := []*storage.WriteResults{write(t, ps[0]), write(t, ps[1])}
	err := ps[0].Commit(t.Context(), record("d0."+id, "d1."+id), results)
	if !errors.Is(err, storage.ErrUncertain) {
		t.Fatalf("Commit without an answer = %v; want ErrUncertain", err)
	}
	if err := ps[0].Abort(t.Context()); err != nil { // other ranks do not call it in this case
		t.Error(err)
	}
	s.mute = false
}

// sweepAll removes leftovers of any age and returns their names.
func sweepAll(t *testing.T, s blob.Store) []string {
	t.Helper()
	removed := must.Get(commit.Sweep(t.Context(), s, toy, 0, nil))(t)
	var names []string
	for _, l := range removed {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

// A record written without an answer may appear later. Until then no file of the old or the
// new checkpoint is removed, and commands can give the reason.
func TestUncertainCommitKeepsBothCheckpoints(t *testing.T) {
	for _, lands := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &service{Store: new(mem.Store)}
			storagetest.Put(t, s, "record", []byte("d0.old"))
			storagetest.Put(t, s, "d0.old", []byte("data"))
			uncertain(t, s, "new")
			if got := sweepAll(t, s); got != nil {
				t.Errorf("a sweep removed %v while the commit is uncertain", got)
			}
			for name, check := range map[string]func() error{
				"CheckUncertain": func() error { return commit.CheckUncertain(t.Context(), s) },
				"CheckIdle":      func() error { return commit.CheckIdle(t.Context(), s, "toy") },
			} {
				if err := check(); !errors.Is(err, storage.ErrUncertain) || !strings.Contains(err.Error(), "save new") {
					t.Errorf("%s = %v; want ErrUncertain with the save", name, err)
				}
			}
			if lands {
				s.land()
				wantFiles(t, s.Store, "d0.new", "d0.old", "d1.new", "record")
				if got := sweepAll(t, s); !slices.Equal(got, []string{"d0.old"}) {
					t.Errorf("after the record has appeared, a sweep removed %v; want d0.old", got)
				}
			} else {
				next := begin(t, s, "next", storage.WriteOptions{})
				commitAll(t, next, "next")
				s.land() // its condition does not hold any more
				if got := sweepAll(t, s); !slices.Equal(got, []string{"d0.new", "d1.new"}) {
					t.Errorf("after another save, a sweep removed %v; want the files of the uncertain one", got)
				}
				wantFiles(t, s.Store, "d0.next", "d1.next", "record")
			}
			if err := commit.CheckUncertain(t.Context(), s); err != nil {
				t.Errorf("CheckUncertain once it is settled = %v", err)
			}
			time.Sleep(blob.Lease)
			sweepAll(t, s)
			if len(s.locks) != 0 {
				t.Errorf("the locks %v stay", s.locks)
			}
		})
	}
}

// In an empty place, the record of an uncertain save settles it too.
func TestUncertainFirstSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{Store: new(mem.Store)}
		uncertain(t, s, "new")
		err := commit.Explain(t.Context(), s, storage.ErrNotFound)
		if !errors.Is(err, storage.ErrUncertain) || !errors.Is(err, storage.ErrIncomplete) || !strings.Contains(err.Error(), "save here again") {
			t.Errorf("Explain = %v; want advice about the uncertain save", err)
		}
		sweepAll(t, s)
		s.land()
		sweepAll(t, s)
		wantFiles(t, s.Store, "d0.new", "d1.new", "record")
	})
}

// After a day, an uncertain save has failed, and its files go by age.
func TestUncertainSaveIsOverAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{Store: new(mem.Store)}
		uncertain(t, s, "new")
		time.Sleep(23 * time.Hour)
		if got := sweepAll(t, s); got != nil {
			t.Errorf("after 23 hours, a sweep removed %v", got)
		}
		time.Sleep(time.Hour)
		if got := sweepAll(t, s); !slices.Equal(got, []string{"d0.new", "d1.new"}) {
			t.Errorf("after a day, a sweep removed %v; want the files of the save", got)
		}
	})
}

// commitAll writes and commits a save.
func commitAll(t *testing.T, ps []*commit.Committer, id string) {
	t.Helper()
	results := []*storage.WriteResults{write(t, ps[0]), write(t, ps[1])}
	must.Do(t, ps[0].Commit(t.Context(), record("d0."+id, "d1."+id), results))
}

// A save in a service takes its lock when it has gone on for a while, and beats. As long as
// it does, no sweep removes its files, whatever their age.
func TestLongSaveBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{Store: new(mem.Store)}
		quick := begin(t, s, "quick", storage.WriteOptions{})
		if commitAll(t, quick, "quick"); len(s.locks) != 0 {
			t.Errorf("a short save took the locks %v", s.locks)
		}
		ps := begin(t, s, "new", storage.WriteOptions{})
		results := []*storage.WriteResults{write(t, ps[0]), write(t, ps[1])}
		time.Sleep(commit.LockAfter + time.Second)
		for range 30 {
			if got := sweepAll(t, s); got != nil {
				t.Fatalf("a sweep removed %v of a living save", got)
			}
			time.Sleep(time.Minute)
		}
		if err := ps[0].Commit(t.Context(), record("d0.new", "d1.new"), results); err != nil {
			t.Error(err)
		}
		wantFiles(t, s.Store, "d0.new", "d1.new", "record")
		if len(s.locks) != 0 {
			t.Errorf("the locks %v stay", s.locks)
		}
	})
}

// A suspended save does not commit if its files were removed meanwhile.
func TestSuspendedSaveWithoutFilesDoesNotCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{Store: new(mem.Store)}
		ps := begin(t, s, "new", storage.WriteOptions{})
		results := []*storage.WriteResults{write(t, ps[0]), write(t, ps[1])}
		if got := sweepAll(t, s); len(got) != 2 {
			t.Fatalf("before it has a lock, a sweep of age 0 removed %v", got)
		}
		if err := ps[0].Commit(t.Context(), record("d0.new", "d1.new"), results); err == nil {
			t.Error("Commit without files = nil")
		}
		if err := ps[0].Abort(t.Context()); err != nil {
			t.Error(err)
		}
		wantFiles(t, s.Store)
	})
}

// If the place of a save has changed since the save began, it does not replace the newer
// checkpoint, in any store.
func TestCommitOfAnOldSaveFails(t *testing.T) {
	folder := must.Get(file.Open(t.TempDir(), nil))(t)
	for name, s := range map[string]blob.Store{"mem": new(mem.Store), "folder": folder} {
		for _, first := range []bool{true, false} {
			t.Run(path.Join(name, fmt.Sprint(first)), func(t *testing.T) {
				if !first {
					commitAll(t, begin(t, s, "old", storage.WriteOptions{}), "old")
				}
				suspended := begin(t, s, "suspended"+fmt.Sprint(first), storage.WriteOptions{})
				results := []*storage.WriteResults{write(t, suspended[0]), write(t, suspended[1])}
				id := "newer" + fmt.Sprint(first)
				commitAll(t, begin(t, s, id, storage.WriteOptions{}), id)
				err := suspended[0].Commit(t.Context(), record("d0.suspended", "d1.suspended"), results)
				if !errors.Is(err, storage.ErrChanged) {
					t.Errorf("Commit = %v; want ErrChanged", err)
				}
				for _, p := range suspended {
					if err := p.Abort(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if now, err := read(t.Context(), s); err != nil || now.Files[0] != "d0."+id {
					t.Errorf("the record names %v, %v; want the newer save", now, err)
				}
				wantFiles(t, s, "d0."+id, "d1."+id, "record")
			})
		}
	}
}

// The note of an uncertain save has the names that other versions of cairn read.
func TestNoteOfAnUncertainSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{Store: new(mem.Store)}
		storagetest.Put(t, s, "record", []byte("d0.old"))
		uncertain(t, s, "new")
		var note map[string]any
		if err := json.Unmarshal(s.locks["save-toy-new"].Note, &note); err != nil || note["record"] != "record" || note["base"] != "1" {
			t.Errorf("the note is %v, %v; want the record and the version 1 of the old one", note, err)
		}
	})
}
