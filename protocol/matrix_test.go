package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// errOnPurpose must be found on every rank, whichever it happened on.
var errOnPurpose = errors.New("went wrong on purpose")

func init() { group.RegisterError("protocoltest.onpurpose", errOnPurpose) }

// trap is a failure on one rank: at a method, by an error, a panic or the end of the rank's
// context. The zero trap has no effect.
type trap struct {
	at     string
	how    string
	cancel context.CancelCauseFunc
}

func (p trap) enter(method string) error {
	if method != p.at {
		return nil
	}
	switch p.how {
	case "error":
		return fmt.Errorf("%s: %w", method, errOnPurpose)
	case "panic":
		panic(fmt.Errorf("%s: %w", method, errOnPurpose))
	}
	p.cancel(errOnPurpose)
	return nil // and go on: the other ranks handle the ended context
}

// waysOut are the ways in which something goes wrong, and the error that tells.
var waysOut = map[string]error{"error": errOnPurpose, "panic": group.ErrPanic, "cancel": context.Canceled}

// method is a method of a protocol, the step it is part of, and whether only the
// coordinator calls it.
type method struct {
	name, step string
	global     bool
}

// victims are the sets of ranks that a method may fail on. If tests do little, it is one of them, at random.
func (m method) victims(how string) [][]int {
	sets := [][]int{{0}, {3}, {1, 2}, {0, 1, 2, 3}}
	switch {
	case m.global:
		sets = [][]int{{0}}
	case how == "cancel": // of several contexts that end, the first to be seen is named
		sets = [][]int{{0}, {2}}
	}
	if !deep.On() {
		sets = sets[rand.IntN(len(sets)):][:1]
	}
	return sets
}

func TestSaveFailureReachesAllRanks(t *testing.T) {
	for _, m := range []method{
		{"planner.SetUp", "plan", false},
		{"writer.SetUp", "plan", false},
		{"planner.LocalPlan", "plan", false},
		{"writer.PrepareLocalPlan", "plan", false},
		{"planner.GlobalPlan", "plan", true},
		{"writer.PrepareGlobalPlan", "plan", true},
		{"planner.FinishPlan", "write", false},
		{"planner.Resolve", "write", false},
		{"writer.HasWritten", "write", false},
		{"writer.Finish", "commit", true},
	} {
		for how, want := range waysOut {
			for _, ranks := range m.victims(how) {
				t.Run(fmt.Sprint(m.name, " ", how, " ", ranks), func(t *testing.T) { testSaveFailure(t, m, how, want, ranks) })
			}
		}
	}
}

func testSaveFailure(t *testing.T, m method, how string, want error, ranks []int) {
	s := new(mem.Store)
	mustSave(t, s, "old", 1)
	before := storagetest.Names(t, s)
	caches := make([]plan.Cache, world)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		job := saveJob(t, g, s, "new", 2)
		job.Cache = &caches[g.Rank()]
		if slices.Contains(ranks, g.Rank()) {
			p := trap{m.name, how, cancel}
			job.Planner, job.Writer = &SavePlanner{Hook: p.enter}, &Writer{Writer: job.Writer, Hook: p.enter}
		}
		_, err := protocol.Save(ctx, job)
		return err
	})
	checkFailed(t, errs, m.step, ranks, want)
	// A Finish that panics may have committed: its files must stay.
	if uncertain := m.name == "writer.Finish" && how == "panic"; !uncertain {
		if got := storagetest.Names(t, s); !slices.Equal(got, before) {
			t.Errorf("the place holds %q; want %q", got, before)
		}
	} else if !errors.Is(errs[1], storage.ErrUncertain) {
		t.Errorf("rank 1 returned %v; want %v", errs[1], storage.ErrUncertain)
	}
	checkHolds(t, s, 1)
	checkCachesServe(t, s, caches)
	checkHolds(t, s, 4)
}

// checkCachesServe saves twice with the caches of a save that failed.
func checkCachesServe(t *testing.T, s blob.Store, caches []plan.Cache) {
	t.Helper()
	for i, seed := range []byte{3, 4} {
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := saveJob(t, g, s, fmt.Sprint("next", i), seed)
			job.Cache = &caches[g.Rank()]
			r, err := protocol.Save(ctx, job)
			if err == nil && r.PlanReused != (i > 0) {
				err = fmt.Errorf("plan reused: %v in save %d", r.PlanReused, i)
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("the next save: %v", err)
		}
	}
}

// checkFailed checks that every rank returned the same error of a step, about those
// ranks, which wraps want and errOnPurpose.
func checkFailed(t *testing.T, errs []error, step string, ranks []int, want error) {
	t.Helper()
	checkSame(t, errs, step, ranks)
	for r, err := range errs {
		if !errors.Is(err, want) || !errors.Is(err, errOnPurpose) {
			t.Errorf("rank %d returned %v; want %v and %v", r, err, want, errOnPurpose)
		}
	}
}
