package protocol_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

func TestLoadFailureReachesAllRanks(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "old", 1)
	for _, m := range []method{
		{"reader.ReadMetadata", "plan", false},
		{"planner.SetUp", "plan", false},
		{"reader.SetUp", "plan", false},
		{"planner.LocalPlan", "plan", false},
		{"reader.PrepareLocalPlan", "plan", false},
		{"planner.GlobalPlan", "plan", true},
		{"reader.PrepareGlobalPlan", "plan", true},
		{"planner.FinishPlan", "read", false},
		{"planner.ResolveTensor", "read", false},
		{"planner.CommitTensor", "read", false},
		{"planner.LoadBytes", "read", false},
		{"reader.ReadData", "read", false},
	} {
		for how, want := range waysOut {
			for _, ranks := range m.victims(how) {
				t.Run(fmt.Sprint(m.name, " ", how, " ", ranks), func(t *testing.T) { testLoadFailure(t, s, m, how, want, ranks) })
			}
		}
	}
	checkHolds(t, s, 1)
}

func testLoadFailure(t *testing.T, s blob.Store, m method, how string, want error, ranks []int) {
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		job := protocol.RankLoad{Group: g, Planner: new(plan.DefaultLoad), Reader: storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}), State: blank(t, g.Rank())}
		if slices.Contains(ranks, g.Rank()) {
			p := trap{m.name, how, cancel}
			job.Planner, job.Reader = &LoadPlanner{Hook: p.enter}, &Reader{Reader: job.Reader, Hook: p.enter}
		}
		_, err := protocol.Load(ctx, job)
		return err
	})
	checkFailed(t, errs, m.step, ranks, want)
}
