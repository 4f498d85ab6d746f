package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/engine"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// saveAll saves on all ranks, each with its own view of the store, and returns
// the errors.
func saveAll(t *testing.T, id string, seed byte, view func(rank int) blob.Store) []error {
	t.Helper()
	return onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		_, err := engine.Save(ctx, saveJob(t, g, view(g.Rank()), id, seed))
		return err
	})
}

func TestFullDiskIsKnownOnAllRanks(t *testing.T) {
	for _, victim := range []int{0, 2} {
		inner := new(mem.Store)
		mustSave(t, inner, "old", 1)
		before := names(t, inner)
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
		if got := names(t, inner); !slices.Equal(got, before) {
			t.Errorf("the place holds %q; want %q", got, before)
		}
		checkHolds(t, inner, 1)
	}
}

func TestNamedErrorsAreKnownOnAllRanks(t *testing.T) {
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
		if _, err := blob.WriteAll(t.Context(), s, c.file, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := engine.LoadJob{Group: g, Planner: new(plan.DefaultLoad), Reader: native.NewReader(sound, nil), State: plan.State{}}
			if g.Rank() == 3 {
				job.Reader = native.NewReader(s, nil)
			}
			_, err := engine.Load(ctx, job)
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

// The commit took place, and only then was it known to have failed: nobody may
// remove a file.
func TestNobodyTakesAnUncertainCommitBack(t *testing.T) {
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

// hookedWriter calls a function before or after Finish.
type hookedWriter struct {
	storage.Writer
	before, after func()
}

func (w *hookedWriter) Finish(ctx context.Context, md *meta.Metadata, rs []*storage.WriteResults) error {
	if w.before != nil {
		w.before()
	}
	err := w.Writer.Finish(ctx, md, rs)
	if w.after != nil {
		w.after()
	}
	return err
}

// A rank whose context ends while the coordinator commits learns the outcome all
// the same: it must not take its files out of a checkpoint.
func TestContextThatEndsDuringTheCommitChangesNothing(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		s := new(mem.Store)
		mustSave(t, s, "old", 1)
		cancels := make([]context.CancelFunc, world)
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			cancels[g.Rank()] = cancel
			job := saveJob(t, g, s, "new", 2)
			hook := func() {
				cancels[1]()
				cancels[3]()
				if when == "after" {
					cancels[0]()
				}
			}
			w := &hookedWriter{Writer: job.Writer, before: hook}
			if when == "after" {
				w.before, w.after = nil, hook
			}
			job.Writer = w
			_, err := engine.Save(ctx, job)
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("cancelled %s the commit: %v; want success", when, err)
		}
		checkHolds(t, s, 2)
	}
}

// A rank that goes away for good while the coordinator commits: the others do
// not know what became of it, and leave everything where it is.
func TestRankThatLeavesDuringTheCommit(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "old", 1)
	gone := errors.New("node lost")
	ends := make([]*inproc.Group, world)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		ends[g.Rank()] = g
		job := saveJob(t, g, s, "new", 2)
		job.Writer = &hookedWriter{Writer: job.Writer, before: func() { ends[2].Leave(gone) }}
		_, err := engine.Save(ctx, job)
		return err
	})
	for r, err := range errs {
		if !errors.Is(err, storage.ErrUncertain) || !errors.Is(err, group.ErrGone) {
			t.Errorf("rank %d returned %v; want %v and %v", r, err, storage.ErrUncertain, group.ErrGone)
		}
	}
	checkHolds(t, s, 2) // it was committed, as it happens
}

// leavingWriter leaves the group in the middle of WriteData.
type leavingWriter struct {
	storage.Writer
	leave func()
}

func (w *leavingWriter) WriteData(ctx context.Context, p *plan.SavePlan, d storage.Resolver) (*storage.WriteResults, error) {
	r, err := w.Writer.WriteData(ctx, p, d)
	w.leave()
	return r, err
}

// A rank that dies while it writes: the coordinator, which has not committed,
// cleans up for all.
func TestRankThatLeavesWhileItWrites(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "old", 1)
	before := names(t, s)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := saveJob(t, g, s, "new", 2)
		if g.Rank() == 2 {
			job.Writer = &leavingWriter{job.Writer, func() { g.Leave(nil) }}
		} else {
			job.Writer = &leavingWriter{job.Writer, func() { time.Sleep(time.Duration(world-g.Rank()) * time.Second) }}
		}
		_, err := engine.Save(ctx, job)
		return err
	})
	for r, err := range errs {
		if !errors.Is(err, group.ErrGone) || errors.Is(err, storage.ErrUncertain) {
			t.Errorf("rank %d returned %v; want %v", r, err, group.ErrGone)
		}
	}
	checkHolds(t, s, 1)
	if got := names(t, s); !slices.Equal(got, before) {
		t.Errorf("the place holds %q; want %q", got, before)
	}
}

// cutOffGroup loses sight of the others at its n-th broadcast, which completes
// for them.
type cutOffGroup struct {
	*inproc.Group
	left int
}

func (g *cutOffGroup) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	v, err := g.Group.Broadcast(ctx, root, v)
	if g.left--; g.left == 0 {
		g.Leave(nil)
		return nil, &group.Error{Op: group.OpBroadcast, Ranks: []int{0}, Err: group.ErrGone}
	}
	return v, err
}

// A rank that is cut off when its results are the coordinator's: its files may
// be part of a checkpoint by the time it finds out, and so they are.
func TestRankThatIsCutOffLeavesItsFiles(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "old", 1)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := saveJob(t, g, s, "new", 2)
		if g.Rank() == 2 {
			job.Group = &cutOffGroup{g, 5} // of the step "write", the last word
		}
		_, err := engine.Save(ctx, job)
		return err
	})
	for r, err := range errs {
		se, ok := errors.AsType[*group.StepError](err)
		if !ok || !errors.Is(err, group.ErrGone) || r == 2 && se.Step != "write" || r != 2 && se.Step != "commit" {
			t.Errorf("rank %d returned %v; want %v", r, err, group.ErrGone)
		}
	}
	checkHolds(t, s, 2)
}

// failingPlanner fails before the writer is set up.
type failingPlanner struct{ plan.DefaultSave }

func (*failingPlanner) SetUp(plan.SaveSetup) error { return errOnPurpose }

// Writers that are used for one save after the other: a save that fails before
// they were set up must not cost the one before.
func TestFailedSaveSparesTheWritersLastOne(t *testing.T) {
	s := new(mem.Store)
	writers := make([]storage.Writer, world)
	for i := range writers {
		writers[i] = native.NewWriter(s, nil)
	}
	for i, p := range []plan.SavePlanner{new(plan.DefaultSave), new(failingPlanner)} {
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := saveJob(t, g, s, fmt.Sprint("save", i), byte(i))
			job.Writer, job.Planner = writers[g.Rank()], &plan.DefaultSave{}
			if i > 0 {
				job.Planner = p
			}
			_, err := engine.Save(ctx, job)
			return err
		})
		if err := errors.Join(errs...); (err != nil) != (i > 0) {
			t.Fatalf("save %d = %v", i, err)
		}
	}
	checkHolds(t, s, 0)
}

// A store that hangs must not keep a failed save from returning.
func TestAbortTakesNotForever(t *testing.T) {
	inner := new(mem.Store)
	var warned [world]atomic.Int64
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		s := fault.New(inner,
			fault.Rule{On: fault.Remove | fault.List, Nth: 2, Times: -1, Do: fault.Delay(24 * time.Hour)},
			fault.Rule{On: fault.Commit, Match: func(name string) bool { return strings.Contains(name, "-r00003-") }, Do: fault.Fail(syscall.EIO)})
		job := saveJob(t, g, s, "new", 2)
		job.Warned = func(err error) {
			if errors.Is(err, context.DeadlineExceeded) {
				warned[g.Rank()].Add(1)
			}
		}
		start := time.Now()
		_, err := engine.Save(ctx, job)
		if took := time.Since(start); took > 10*time.Minute {
			t.Errorf("rank %d took %v", g.Rank(), took)
		}
		return err
	})
	checkSame(t, errs, "write", []int{3})
	if warned[0].Load() == 0 {
		t.Error("the coordinator did not warn of what it left behind")
	}
}

// Ranks that remember different saves, and ranks that remember none.
func TestCachesThatDifferPlanAgain(t *testing.T) {
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
			_, err := engine.Save(ctx, job)
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("save %d = %v", i, err)
		}
		checkHolds(t, s, byte(i))
	}
}

// Two ranks see different checkpoints.
func TestRanksThatSeeDifferentSaves(t *testing.T) {
	a, b := new(mem.Store), new(mem.Store)
	mustSave(t, a, "first", 1)
	mustSave(t, b, "second", 1)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		s := a
		if g.Rank() == 2 {
			s = b
		}
		_, err := engine.Load(ctx, engine.LoadJob{Group: g, Planner: new(plan.DefaultLoad), Reader: native.NewReader(s, nil), State: blank(t, g.Rank())})
		return err
	})
	checkSame(t, errs, "plan", []int{0})
	for r, err := range errs {
		if !errors.Is(err, storage.ErrChanged) {
			t.Errorf("rank %d returned %v; want %v", r, err, storage.ErrChanged)
		}
	}
}

func TestTheCoordinatorsWordCounts(t *testing.T) {
	s := new(mem.Store)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		r, err := engine.Save(ctx, saveJob(t, g, s, "id", 1))
		if err == nil && (r.Storage.SaveID != "id" || r.Storage.Step != 7) {
			err = fmt.Errorf("rank %d saved %+v", g.Rank(), r.Storage)
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// What the observer is told sums up, rank by rank, and so do the results.
func TestObserverAndTotals(t *testing.T) {
	s := new(mem.Store)
	var planned, moved [world]atomic.Int64
	observe := func(rank int) engine.Observer {
		return engine.Observer{
			Planned: func(n int64) { planned[rank].Add(n) },
			Moved:   func(n int64) { moved[rank].Add(n) },
		}
	}
	check := func(what string) (sum int64) {
		for r := range world {
			p, m := planned[r].Swap(0), moved[r].Swap(0)
			if p != m {
				t.Errorf("%s: rank %d planned %d bytes and moved %d", what, r, p, m)
			}
			sum += m
		}
		return sum
	}
	var local atomic.Int64
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := saveJob(t, g, s, "id", 1)
		job.Observer = observe(g.Rank())
		r, err := engine.Save(ctx, job)
		if err == nil {
			local.Add(r.LocalBytes)
			if r.Files != world || r.Bytes == 0 {
				err = fmt.Errorf("result %+v", r)
			}
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	const least = 16*6*4 + 5*8 + 20_000 // small values may be padded
	if got := check("save"); got < least+1+world || got > least+500 {
		t.Errorf("saved %d bytes; want %d and some small values", got, least)
	}
	var data int64
	for info := range s.List(t.Context(), "id-r") {
		data += info.Size
	}
	if local.Load() != data {
		t.Errorf("the ranks wrote %d bytes; the files have %d", local.Load(), data)
	}
	errs = onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		r, err := engine.Load(ctx, engine.LoadJob{
			Group: g, Planner: new(plan.DefaultLoad), Reader: native.NewReader(s, nil), State: blank(t, g.Rank()), Observer: observe(g.Rank()),
		})
		if err == nil && (r.Total.Needed != 16*6*4+world*(5*8+20_000) || r.Local.Needed == 0) {
			err = fmt.Errorf("stats %+v of %+v", r.Local, r.Total)
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	check("load")
}
