package storagetest

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// AtFunc returns the place at the root of a store.
type AtFunc func(s blob.Store) Place

// faults are the ways in which the n-th operation of a save goes wrong.
var faults = map[string]func(n int64) fault.Rule{
	"crash in place of an operation": fault.CrashAt,
	"crash after an operation":       fault.CrashLateAt,
	"an operation fails":             func(n int64) fault.Rule { return fault.Rule{Nth: n, Do: fault.Fail(syscall.EIO)} },
	"an operation fails late":        func(n int64) fault.Rule { return fault.Rule{Nth: n, Do: fault.FailLate(syscall.EIO)} },
}

// RunFaults tests what becomes of a save whose process dies at one of its
// operations on the store, or one of whose operations fails, for each of them:
// the checkpoint before, or the new one, is there whole; what was reported is
// true; what failed leaves nothing behind; and the next save succeeds.
func RunFaults(t *testing.T, at AtFunc, opts *Options) {
	s := &suite{opts.withDefaults()}
	for name, rule := range faults {
		t.Run(name+", first save", func(t *testing.T) { s.everyFault(t, at, rule, nil) })
		t.Run(name+", over another", func(t *testing.T) { s.everyFault(t, at, rule, s.small(t, 1)) })
	}
}

// everyFault lets one operation after the other go wrong in saves over old, or
// over nothing where that is nil.
func (s *suite) everyFault(t *testing.T, at AtFunc, rule func(int64) fault.Rule, old plan.State) {
	for n := int64(1); ; n++ {
		inner := new(mem.Store)
		if old != nil {
			if err := Save(t.Context(), at(inner), Storage("old", 1, 2), old, plan.State{}); err != nil {
				t.Fatal(err)
			}
		}
		f := fault.New(inner, rule(n))
		s.oneFault(t, at, inner, f, old)
		if t.Failed() {
			t.Fatalf("operation %d:\n%v", n, f.Ops())
		}
		if !f.Crashed() && int64(len(f.Ops().Log)) < n {
			if n < 8 && !s.OneRank || n < 4 {
				t.Errorf("a save has %d operations; the test saw too little", n-1)
			}
			return
		}
	}
}

// oneFault saves over old through f and looks at what is there afterwards.
func (s *suite) oneFault(t *testing.T, at AtFunc, inner blob.Store, f *fault.Store, old plan.State) {
	before := Names(t, inner)
	young := s.small(t, 2)
	states := []plan.State{{"w": young["w"]}, without(young, "w")}
	if s.OneRank {
		states = []plan.State{young, {}}
	}
	err := Save(context.Background(), at(f), Storage("new", 2, 2), states...)
	switch {
	case err == nil:
		checkHolds(t, at(inner), young, "after a save that succeeded")
	case f.Crashed() || errors.Is(err, storage.ErrUncertain):
		checkEither(t, at(inner), old, young)
	case !errors.Is(err, syscall.EIO):
		t.Errorf("Save = %v; want %v", err, syscall.EIO)
	default:
		checkOld(t, at(inner), old)
		if now := Names(t, inner); !slices.Equal(now, before) {
			t.Errorf("after a save that failed there are %q; want %q", now, before)
		}
	}
	next := s.small(t, 9)
	if err := Save(t.Context(), at(inner), Storage("later", 3, 2), next, plan.State{}); err != nil {
		t.Errorf("the next save = %v", err)
		return
	}
	checkHolds(t, at(inner), next, "after the next save")
}

// checkOld fails unless p holds old, or nothing where that is nil.
func checkOld(t *testing.T, p Place, old plan.State) {
	t.Helper()
	if old == nil {
		checkNone(t, p, "after a save that did not succeed")
		return
	}
	checkHolds(t, p, old, "after a save that did not succeed")
}

// checkEither fails unless p holds young, or what checkOld wants.
func checkEither(t *testing.T, p Place, old, young plan.State) {
	t.Helper()
	got := blankState(t, young)
	if err := Load(t.Context(), p, got); err == nil && cmp.Equal(young, got, sameTensor) {
		checkHolds(t, p, young, "after a save whose end is not known")
		return
	}
	checkOld(t, p, old)
}

func without(s plan.State, name string) plan.State {
	out := plan.State{}
	for k, v := range s {
		if k != name {
			out[k] = v
		}
	}
	return out
}
