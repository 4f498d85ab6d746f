package protocol_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

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

// If the context of a rank ends while the coordinator commits, the rank learns the outcome
// all the same: it must not take its files out of a checkpoint.
func TestSaveIgnoresContextDuringCommit(t *testing.T) {
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
			_, err := protocol.Save(ctx, job)
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("cancelled %s the commit: %v; want success", when, err)
		}
		checkHolds(t, s, 2)
	}
}

// If the coordinator leaves while it commits, the other ranks do not know the
// outcome, and remove no file.
func TestSaveRankLeavesDuringCommit(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "old", 1)
	gone := errors.New("node lost")
	ends := make([]*inproc.Group, world)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		ends[g.Rank()] = g
		job := saveJob(t, g, s, "new", 2)
		job.Writer = &hookedWriter{Writer: job.Writer, before: func() { ends[2].Leave(gone) }}
		_, err := protocol.Save(ctx, job)
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
func TestSaveRankLeavesDuringWrite(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "old", 1)
	before := storagetest.Names(t, s)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := saveJob(t, g, s, "new", 2)
		if g.Rank() == 2 {
			job.Writer = &leavingWriter{job.Writer, func() {
				time.Sleep(time.Millisecond) // until the others have written: they would be stopped
				g.Leave(nil)
			}}
		} else {
			job.Writer = &leavingWriter{job.Writer, func() { time.Sleep(time.Duration(world-g.Rank()) * time.Second) }}
		}
		_, err := protocol.Save(ctx, job)
		return err
	})
	for r, err := range errs {
		if !errors.Is(err, group.ErrGone) || errors.Is(err, storage.ErrUncertain) != (r != 0) {
			t.Errorf("rank %d returned %v; want %v, of which only the coordinator is certain", r, err, group.ErrGone)
		}
	}
	checkHolds(t, s, 1)
	if got := storagetest.Names(t, s); !slices.Equal(got, before) {
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
func TestSaveCutOffRankKeepsFiles(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "old", 1)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := saveJob(t, g, s, "new", 2)
		if g.Rank() == 2 {
			job.Group = &cutOffGroup{g, 5} // of the step "write", the last word
		}
		_, err := protocol.Save(ctx, job)
		return err
	})
	for r, err := range errs {
		se, ok := errors.AsType[*group.StepError](err)
		if !ok || !errors.Is(err, group.ErrGone) || !errors.Is(err, storage.ErrUncertain) || (se.Step == "write") != (r == 2) {
			t.Errorf("rank %d returned %v; want %v and %v", r, err, group.ErrGone, storage.ErrUncertain)
		}
	}
	checkHolds(t, s, 2)
}

// A store that hangs must not keep a failed save from returning.
func TestSaveAbortIsBounded(t *testing.T) {
	inner := new(mem.Store)
	var warned [world]atomic.Int64
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		s := fault.New(inner,
			fault.Rule{On: fault.Remove | fault.List, Nth: 1, Times: -1, Do: fault.Delay(24 * time.Hour)},
			fault.Rule{On: fault.Commit, Match: func(name string) bool { return strings.Contains(name, "-r00003-") }, Do: fault.Fail(syscall.EIO)})
		job := saveJob(t, g, s, "new", 2)
		job.Observer = &protocol.Observer{Warned: func(err error) {
			if errors.Is(err, context.DeadlineExceeded) {
				warned[g.Rank()].Add(1)
			}
		}}
		start := time.Now()
		_, err := protocol.Save(ctx, job)
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
