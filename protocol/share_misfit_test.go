package protocol_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// spoiling changes the memory that it was handed, as it may.
type spoiling struct{ plan.DefaultLoad }

func (*spoiling) CanShare() bool { return true }

func (p *spoiling) CommitTensor(_ *plan.ReadItem, x *tensor.Tensor) error {
	if b, ok := x.Bytes(); ok {
		clear(b)
	}
	return nil
}

func TestSharePlannerMayChangeTensors(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := shareJob(t, g, s)
		if g.Rank() == 3 {
			_, err := protocol.Load(ctx, job)
			return errors.Join(err, checkReplica(t, job.State, g.Rank()))
		}
		job.Planner = new(spoiling)
		_, err := protocol.Load(ctx, job)
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// fickle changes its plan although it has said that it does not.
type fickle struct{ plan.DefaultLoad }

func (*fickle) CanShare() bool { return true }

func (p *fickle) FinishPlan(q *plan.LoadPlan) (*plan.LoadPlan, error) {
	r := *q
	r.Items = r.Items[1:]
	return &r, nil
}

func TestSharePlannerThatChangesItems(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := shareJob(t, g, s)
		if g.Rank() == 1 {
			job.Planner = new(fickle)
		}
		_, err := protocol.Load(ctx, job)
		return err
	})
	checkSame(t, errs, "read", []int{1})
	if !errors.Is(errs[0], plan.ErrProtocol) {
		t.Errorf("Load = %v; want %v", errs[0], plan.ErrProtocol)
	}
}

// forgetful is a reader that leaves out an item.
type forgetful struct{ storage.Reader }

func (r forgetful) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	q := *p
	q.Items = p.Items[1:]
	return r.Reader.ReadData(ctx, &q, dst)
}

// A reader that omits an item for other ranks fails the load instead of hanging it.
func TestShareReaderThatOmitsItem(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := shareJob(t, g, s)
		job.Reader = forgetful{job.Reader}
		_, err := protocol.Load(ctx, job)
		return err
	})
	checkSame(t, errs, "read", []int{0, 1, 2, 3})
	if !errors.Is(errs[0], plan.ErrProtocol) {
		t.Errorf("Load = %v; want %v", errs[0], plan.ErrProtocol)
	}
}
