package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/engine"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

type loadPlanner struct {
	plan.DefaultLoad
	trap
}

func (p *loadPlanner) SetUp(s plan.LoadSetup) error {
	if err := p.enter("planner.SetUp"); err != nil {
		return err
	}
	return p.DefaultLoad.SetUp(s)
}

func (p *loadPlanner) LocalPlan() (*plan.LoadPlan, error) {
	if err := p.enter("planner.LocalPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.LocalPlan()
}

func (p *loadPlanner) GlobalPlan(ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	if err := p.enter("planner.GlobalPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.GlobalPlan(ps)
}

func (p *loadPlanner) FinishPlan(q *plan.LoadPlan) (*plan.LoadPlan, error) {
	if err := p.enter("planner.FinishPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.FinishPlan(q)
}

func (p *loadPlanner) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	if err := p.enter("planner.ResolveTensor"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.ResolveTensor(it)
}

func (p *loadPlanner) CommitTensor(it *plan.ReadItem, x *tensor.Tensor) error {
	if err := p.enter("planner.CommitTensor"); err != nil {
		return err
	}
	return p.DefaultLoad.CommitTensor(it, x)
}

func (p *loadPlanner) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	if err := p.enter("planner.LoadBytes"); err != nil {
		return err
	}
	return p.DefaultLoad.LoadBytes(it, codec, data)
}

type reader struct {
	storage.Reader
	trap
}

func (r *reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	if err := r.enter("reader.ReadMetadata"); err != nil {
		return nil, err
	}
	return r.Reader.ReadMetadata(ctx)
}

func (r *reader) SetUp(ctx context.Context, md *meta.Metadata, s storage.Session) error {
	if err := r.enter("reader.SetUp"); err != nil {
		return err
	}
	return r.Reader.SetUp(ctx, md, s)
}

func (r *reader) PrepareLocalPlan(ctx context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	if err := r.enter("reader.PrepareLocalPlan"); err != nil {
		return nil, err
	}
	return r.Reader.PrepareLocalPlan(ctx, p)
}

func (r *reader) PrepareGlobalPlan(ctx context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	if err := r.enter("reader.PrepareGlobalPlan"); err != nil {
		return nil, err
	}
	return r.Reader.PrepareGlobalPlan(ctx, ps)
}

func (r *reader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	if err := r.enter("reader.ReadData"); err != nil {
		return storage.ReadStats{}, err
	}
	return r.Reader.ReadData(ctx, p, dst)
}

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
		job := engine.LoadJob{Group: g, Planner: new(plan.DefaultLoad), Reader: native.NewReader(s, nil), State: blank(t, g.Rank())}
		if slices.Contains(ranks, g.Rank()) {
			p := trap{m.name, how, cancel}
			job.Planner, job.Reader = &loadPlanner{trap: p}, &reader{job.Reader, p}
		}
		_, err := engine.Load(ctx, job)
		return err
	})
	checkSame(t, errs, m.step, ranks)
	for r, err := range errs {
		if !errors.Is(err, want) || !errors.Is(err, errOnPurpose) {
			t.Errorf("rank %d returned %v; want %v and %v", r, err, want, errOnPurpose)
		}
	}
}
