package protocol_test

import (
	"context"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Hook is called with the point that a rank has reached: "planner.LocalPlan" before that
// method, and "writer.HasWritten", "writer.HasFinished" and "reader.HasRead" after WriteData,
// Finish and ReadData. The method returns the error of the hook, if any. A nil hook has no
// effect.
type Hook func(point string) error

func (h Hook) at(point string) error {
	if h == nil {
		return nil
	}
	return h(point)
}

// SavePlanner is the default planner of saves, with a hook.
type SavePlanner struct {
	plan.DefaultSave
	Hook Hook
}

func (p *SavePlanner) SetUp(s plan.SaveSetup) error {
	if err := p.Hook.at("planner.SetUp"); err != nil {
		return err
	}
	return p.DefaultSave.SetUp(s)
}

func (p *SavePlanner) LocalPlan() (*plan.SavePlan, error) {
	if err := p.Hook.at("planner.LocalPlan"); err != nil {
		return nil, err
	}
	return p.DefaultSave.LocalPlan()
}

func (p *SavePlanner) GlobalPlan(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	if err := p.Hook.at("planner.GlobalPlan"); err != nil {
		return nil, nil, err
	}
	return p.DefaultSave.GlobalPlan(ps)
}

func (p *SavePlanner) FinishPlan(q *plan.SavePlan) (*plan.SavePlan, error) {
	if err := p.Hook.at("planner.FinishPlan"); err != nil {
		return nil, err
	}
	return p.DefaultSave.FinishPlan(q)
}

// Resolve calls the hook for tensors only: storage resolves them in its own
// goroutines.
func (p *SavePlanner) Resolve(it *plan.WriteItem) (plan.Data, error) {
	if it.Kind != plan.KindBytes {
		if err := p.Hook.at("planner.Resolve"); err != nil {
			return plan.Data{}, err
		}
	}
	return p.DefaultSave.Resolve(it)
}

// LoadPlanner is the default planner of loads, with a hook.
type LoadPlanner struct {
	plan.DefaultLoad
	Hook  Hook
	Share bool // the result of CanShare
}

var _ plan.Sharer = (*LoadPlanner)(nil)

func (p *LoadPlanner) CanShare() bool { return p.Share }

func (p *LoadPlanner) SetUp(s plan.LoadSetup) error {
	if err := p.Hook.at("planner.SetUp"); err != nil {
		return err
	}
	return p.DefaultLoad.SetUp(s)
}

func (p *LoadPlanner) LocalPlan() (*plan.LoadPlan, error) {
	if err := p.Hook.at("planner.LocalPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.LocalPlan()
}

func (p *LoadPlanner) GlobalPlan(ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	if err := p.Hook.at("planner.GlobalPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.GlobalPlan(ps)
}

func (p *LoadPlanner) FinishPlan(q *plan.LoadPlan) (*plan.LoadPlan, error) {
	if err := p.Hook.at("planner.FinishPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.FinishPlan(q)
}

func (p *LoadPlanner) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	if err := p.Hook.at("planner.ResolveTensor"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.ResolveTensor(it)
}

func (p *LoadPlanner) CommitTensor(it *plan.ReadItem, x *tensor.Tensor) error {
	if err := p.Hook.at("planner.CommitTensor"); err != nil {
		return err
	}
	return p.DefaultLoad.CommitTensor(it, x)
}

func (p *LoadPlanner) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	if err := p.Hook.at("planner.LoadBytes"); err != nil {
		return err
	}
	return p.DefaultLoad.LoadBytes(it, codec, data)
}

// Writer is a writer with a hook.
type Writer struct {
	storage.Writer
	Hook Hook
}

func (w *Writer) SetUp(ctx context.Context, s storage.Session) error {
	if err := w.Hook.at("writer.SetUp"); err != nil {
		return err
	}
	return w.Writer.SetUp(ctx, s)
}

func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	if err := w.Hook.at("writer.PrepareLocalPlan"); err != nil {
		return nil, err
	}
	return w.Writer.PrepareLocalPlan(ctx, p)
}

func (w *Writer) PrepareGlobalPlan(ctx context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	if err := w.Hook.at("writer.PrepareGlobalPlan"); err != nil {
		return nil, err
	}
	return w.Writer.PrepareGlobalPlan(ctx, ps)
}

// WriteData calls the hook before the method and after it.
func (w *Writer) WriteData(ctx context.Context, p *plan.SavePlan, d storage.Resolver) (*storage.WriteResults, error) {
	if err := w.Hook.at("writer.WriteData"); err != nil {
		return nil, err
	}
	r, err := w.Writer.WriteData(ctx, p, d)
	if err := w.Hook.at("writer.HasWritten"); err != nil {
		return nil, err
	}
	return r, err
}

// Finish calls the hook before the method and after it, when the checkpoint has
// appeared and the ranks have not heard of it.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, rs []*storage.WriteResults) error {
	if err := w.Hook.at("writer.Finish"); err != nil {
		return err
	}
	err := w.Writer.Finish(ctx, md, rs)
	if err := w.Hook.at("writer.HasFinished"); err != nil {
		return err
	}
	return err
}

// Reader is a reader with a hook.
type Reader struct {
	storage.Reader
	Hook Hook
}

func (r *Reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	if err := r.Hook.at("reader.ReadMetadata"); err != nil {
		return nil, err
	}
	return r.Reader.ReadMetadata(ctx)
}

func (r *Reader) SetUp(ctx context.Context, md *meta.Metadata, s storage.Session) error {
	if err := r.Hook.at("reader.SetUp"); err != nil {
		return err
	}
	return r.Reader.SetUp(ctx, md, s)
}

func (r *Reader) PrepareLocalPlan(ctx context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	if err := r.Hook.at("reader.PrepareLocalPlan"); err != nil {
		return nil, err
	}
	return r.Reader.PrepareLocalPlan(ctx, p)
}

func (r *Reader) PrepareGlobalPlan(ctx context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	if err := r.Hook.at("reader.PrepareGlobalPlan"); err != nil {
		return nil, err
	}
	return r.Reader.PrepareGlobalPlan(ctx, ps)
}

// ReadData calls the hook before the method and after it.
func (r *Reader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	if err := r.Hook.at("reader.ReadData"); err != nil {
		return storage.ReadStats{}, err
	}
	stats, err := r.Reader.ReadData(ctx, p, dst)
	if err := r.Hook.at("reader.HasRead"); err != nil {
		return storage.ReadStats{}, err
	}
	return stats, err
}
