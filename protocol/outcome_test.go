package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// saveAll saves on all ranks, each with its own view of the store, and returns
// the errors.
func saveAll(t *testing.T, id string, seed byte, view func(rank int) blob.Store) []error {
	t.Helper()
	return onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		_, err := protocol.Save(ctx, saveJob(t, g, view(g.Rank()), id, seed))
		return err
	})
}

func TestSaveFullDiskReachesAllRanks(t *testing.T) {
	for _, victim := range []int{0, 2} {
		inner := new(mem.Store)
		mustSave(t, inner, "old", 1)
		before := storagetest.Names(t, inner)
		errs := saveAll(t, "new", 2, func(rank int) blob.Store {
			if rank != victim {
				return inner
			}
			return fault.New(inner, fault.Rule{On: fault.Write, Times: -1, Do: fault.Fail(syscall.ENOSPC)})
		})
		checkSame(t, errs, "write", []int{victim})
		for r, err := range errs {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("rank %d returned %v; want %v", r, err, syscall.ENOSPC)
			}
		}
		if got := storagetest.Names(t, inner); !slices.Equal(got, before) {
			t.Errorf("the place holds %q; want %q", got, before)
		}
		checkHolds(t, inner, 1)
	}
}

func TestSentinelErrorsReachAllRanks(t *testing.T) {
	s, sound := new(mem.Store), new(mem.Store)
	mustSave(t, sound, "sound", 1)
	for _, c := range []struct {
		file string
		want error
	}{
		{"notes.txt", storage.ErrNotFound},
		{"s-r00000-0.safetensors", storage.ErrIncomplete},
		{"cairn.json", storage.ErrCorrupt},
	} {
		must.Get(blob.WriteAll(t.Context(), s, c.file, []byte("x"), nil))(t)
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := protocol.RankLoad{Group: g, Planner: new(plan.DefaultLoad), Reader: storage.NewReader(native.Format{}.Open, sound, storage.ReadOptions{}), State: plan.State{}}
			if g.Rank() == 3 {
				job.Reader = storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{})
			}
			_, err := protocol.Load(ctx, job)
			return err
		})
		checkSame(t, errs, "plan", []int{3})
		for r, err := range errs {
			if !errors.Is(err, c.want) {
				t.Errorf("rank %d returned %v; want %v", r, err, c.want)
			}
		}
	}
}

// The commit takes effect and then reports an error: no rank may remove a file.
func TestSaveUncertainCommitIsNotAborted(t *testing.T) {
	inner := new(mem.Store)
	mustSave(t, inner, "old", 1)
	errs := saveAll(t, "new", 2, func(int) blob.Store {
		return fault.New(inner, fault.Rule{On: fault.Commit, Match: fault.Named("cairn.json"), Do: fault.FailLate(syscall.EIO)})
	})
	checkSame(t, errs, "commit", []int{0})
	for r, err := range errs {
		if !errors.Is(err, storage.ErrUncertain) || !errors.Is(err, syscall.EIO) {
			t.Errorf("rank %d returned %v; want %v", r, err, storage.ErrUncertain)
		}
	}
	checkHolds(t, inner, 2)
}

// failingPlanner fails before the writer is set up.
type failingPlanner struct{ plan.DefaultSave }

func (*failingPlanner) SetUp(plan.SaveSetup) error { return errOnPurpose }

// Writers that are used for one save after the other: a save that fails before
// they were set up must not cost the one before.
func TestFailedSaveDoesNotAbortSaveBefore(t *testing.T) {
	s := new(mem.Store)
	writers := make([]storage.Writer, world)
	for i := range writers {
		writers[i] = storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{})
	}
	for i, p := range []plan.SavePlanner{new(plan.DefaultSave), new(failingPlanner)} {
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := saveJob(t, g, s, fmt.Sprint("save", i), byte(i))
			job.Writer, job.Planner = writers[g.Rank()], &plan.DefaultSave{}
			if i > 0 {
				job.Planner = p
			}
			_, err := protocol.Save(ctx, job)
			return err
		})
		if err := errors.Join(errs...); (err != nil) != (i > 0) {
			t.Fatalf("save %d = %v", i, err)
		}
	}
	checkHolds(t, s, 0)
}

// Ranks that remember different saves, and ranks that remember no save.
func TestSaveWithDifferentCachesPlansAgain(t *testing.T) {
	s := new(mem.Store)
	caches := make([]*plan.Cache, world)
	for i := range caches {
		caches[i] = new(plan.Cache)
	}
	for i, forget := range []func(){
		func() {},
		func() {},
		func() { caches[0].Forget() },          // a coordinator that was started anew
		func() { caches[2] = new(plan.Cache) }, // another rank
		func() { caches[0], caches[1] = nil, nil },
		func() { caches[0] = new(plan.Cache) },
	} {
		forget()
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := saveJob(t, g, s, fmt.Sprint("save", i), byte(i))
			job.Cache = caches[g.Rank()]
			_, err := protocol.Save(ctx, job)
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("save %d = %v", i, err)
		}
		checkHolds(t, s, byte(i))
	}
}

// Two ranks see different checkpoints.
func TestLoadDetectsDifferentSaves(t *testing.T) {
	a, b := new(mem.Store), new(mem.Store)
	mustSave(t, a, "first", 1)
	mustSave(t, b, "second", 1)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		s := a
		if g.Rank() == 2 {
			s = b
		}
		_, err := protocol.Load(ctx, protocol.RankLoad{Group: g, Planner: new(plan.DefaultLoad), Reader: storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}), State: blank(t, g.Rank())})
		return err
	})
	checkSame(t, errs, "plan", []int{0})
	for r, err := range errs {
		if !errors.Is(err, storage.ErrChanged) {
			t.Errorf("rank %d returned %v; want %v", r, err, storage.ErrChanged)
		}
	}
}

func TestSaveTakesStorageOfCoordinator(t *testing.T) {
	s := new(mem.Store)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		r, err := protocol.Save(ctx, saveJob(t, g, s, "id", 1))
		if err == nil && (r.SaveID != "id" || *r.Step != 7) {
			err = fmt.Errorf("rank %d saved %+v", g.Rank(), r)
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
