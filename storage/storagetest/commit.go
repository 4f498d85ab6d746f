package storagetest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// checkNone fails unless p holds no checkpoint.
func checkNone(t *testing.T, p Place, when string) {
	t.Helper()
	_, err := p.Reader().ReadMetadata(t.Context())
	if !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("%s: ReadMetadata = %v; want %v or %v", when, err, storage.ErrNotFound, storage.ErrIncomplete)
	}
}

// checkHolds fails unless p holds the checkpoint of that state.
func checkHolds(t *testing.T, p Place, want plan.State, when string) {
	t.Helper()
	got := blankState(t, want)
	if err := Load(t.Context(), p, got); err != nil {
		t.Errorf("%s: Load = %v", when, err)
		return
	}
	checkState(t, want, got)
}

func (s *suite) emptyPlace(t *testing.T, p Place) {
	if _, err := p.Reader().ReadMetadata(t.Context()); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("ReadMetadata = %v; want %v", err, storage.ErrNotFound)
	}
}

func (s *suite) beforeFinish(t *testing.T, p Place) {
	old, young := s.small(t, 1), s.small(t, 2)
	sv := NewSaving(p, Storage("first", 1, 1), 1)
	if err := errors.Join(sv.Plan(t.Context(), []plan.State{old}), sv.Write(t.Context())); err != nil {
		t.Fatal(err)
	}
	checkNone(t, p, "before the first Finish")
	if err := sv.Finish(t.Context()); err != nil {
		t.Fatalf("Finish = %v", err)
	}
	checkHolds(t, p, old, "after the first Finish")
	sv = NewSaving(p, Storage("second", 2, 1), 1)
	if err := errors.Join(sv.Plan(t.Context(), []plan.State{young}), sv.Write(t.Context())); err != nil {
		t.Fatal(err)
	}
	checkHolds(t, p, old, "before the second Finish")
	if err := sv.Finish(t.Context()); err != nil {
		t.Fatalf("Finish = %v", err)
	}
	checkHolds(t, p, young, "after the second Finish")
}

func (s *suite) abort(t *testing.T, p Place) {
	old, young := s.small(t, 1), s.small(t, 2)
	sv := NewSaving(p, Storage("first", 1, 2), 2)
	states := []plan.State{old, {}}
	if err := sv.Plan(t.Context(), states); err != nil {
		t.Fatal(err)
	}
	if err := sv.Abort(t.Context()); err != nil {
		t.Errorf("Abort before WriteData = %v", err)
	}
	if err := errors.Join(sv.Plan(t.Context(), states), sv.Write(t.Context())); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := sv.Abort(t.Context()); err != nil {
			t.Errorf("Abort = %v", err)
		}
	}
	s.emptyPlace(t, p) // not even the beginnings
	if err := Save(t.Context(), p, Storage("second", 2, 1), old); err != nil {
		t.Fatalf("Save after Abort = %v", err)
	}
	sv = NewSaving(p, Storage("third", 3, 1), 1)
	if err := errors.Join(sv.Plan(t.Context(), []plan.State{young}), sv.Write(t.Context()), sv.Abort(t.Context())); err != nil {
		t.Fatal(err)
	}
	checkHolds(t, p, old, "after the Abort of another save")
}

// abortAfterFinish is what a program does that lost count.
func (s *suite) abortAfterFinish(t *testing.T, p Place) {
	want := s.small(t, 1)
	sv := NewSaving(p, Storage("only", 1, 1), 1)
	if err := sv.Run(t.Context(), []plan.State{want}); err != nil {
		t.Fatal(err)
	}
	if err := sv.Writers[0].Abort(t.Context()); err != nil {
		t.Errorf("Abort after Finish = %v", err)
	}
	checkHolds(t, p, want, "after Finish and Abort")
}

func (s *suite) replace(t *testing.T, p Place) {
	old, young := s.small(t, 1), s.small(t, 2)
	old["gone"] = Filled(t, s.DTypes[0], []int64{9}, 9)
	young["new"] = Filled(t, s.DTypes[0], []int64{8}, 8)
	for i, state := range []plan.State{old, young} {
		id := []string{"first", "second"}[i]
		if err := Save(t.Context(), p, Storage(id, int64(i), 1), state); err != nil {
			t.Fatalf("Save %s = %v", id, err)
		}
		checkHolds(t, p, state, "after "+id)
	}
	md, err := p.Reader().ReadMetadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := md.Find("gone"); ok || md.Storage.SaveID != "second" && !s.NoStorage {
		t.Errorf("metadata of save %s has %q; want only the second save's names", md.Storage.SaveID, md.Names())
	}
}

// atOnce runs two saves to an empty place, step by step at once. The one that fails,
// before or after the commit of the other, takes nothing with it.
func (s *suite) atOnce(t *testing.T, p Place) {
	want := s.small(t, 2)
	for i, id := range []string{"one", "two"} {
		var saves []*Saving
		for _, name := range []string{id + "-fails", id + "-wins"} {
			sv := NewSaving(p, Storage(name, int64(i), 2), 2)
			states := []plan.State{s.small(t, byte(len(saves)+1)), {}}
			if err := sv.Plan(t.Context(), states); err != nil {
				t.Fatal(err)
			}
			saves = append(saves, sv)
		}
		for _, sv := range saves {
			if err := sv.Write(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		steps := []func(context.Context) error{saves[0].Abort, saves[1].Finish}
		if i == 1 {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			if err := step(t.Context()); err != nil {
				t.Error(err)
			}
		}
		checkHolds(t, p, want, "after "+id)
	}
}

func (s *suite) again(t *testing.T, p Place) {
	sv := NewSaving(p, Storage("first", 1, 2), 2)
	l := NewLoading(p, 2)
	for i, id := range []string{"first", "second", "third"} {
		states := []plan.State{s.small(t, byte(i)), {}}
		sv.Storage = Storage(id, int64(i), 2)
		if err := sv.Run(t.Context(), states); err != nil {
			t.Fatalf("Save %s = %v", id, err)
		}
		got := []plan.State{{}, blankState(t, states[0])}
		if err := errors.Join(l.Plan(t.Context(), got), l.Read(t.Context())); err != nil {
			t.Fatalf("Load %s = %v", id, err)
		}
		checkState(t, states[0], got[1])
	}
}
