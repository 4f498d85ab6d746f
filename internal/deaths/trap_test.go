//go:build unix

package deaths

import (
	"context"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// trap goes off when a rank comes to a point.
type trap struct {
	at  string
	die func()
}

func (t trap) enter(point string) {
	if point == t.at {
		t.die()
	}
}

type savePlanner struct {
	plan.DefaultSave
	trap
}

func (p *savePlanner) SetUp(s plan.SaveSetup) error {
	p.enter("planner.SetUp")
	return p.DefaultSave.SetUp(s)
}

func (p *savePlanner) LocalPlan() (*plan.SavePlan, error) {
	p.enter("planner.LocalPlan")
	return p.DefaultSave.LocalPlan()
}

func (p *savePlanner) GlobalPlan(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	p.enter("planner.GlobalPlan")
	return p.DefaultSave.GlobalPlan(ps)
}

func (p *savePlanner) FinishPlan(q *plan.SavePlan) (*plan.SavePlan, error) {
	p.enter("planner.FinishPlan")
	return p.DefaultSave.FinishPlan(q)
}

func (p *savePlanner) Resolve(it *plan.WriteItem) (plan.Data, error) {
	p.enter("planner.Resolve")
	return p.DefaultSave.Resolve(it)
}

type writer struct {
	storage.Writer
	trap
}

func (w *writer) SetUp(ctx context.Context, s storage.Session) error {
	w.enter("writer.SetUp")
	return w.Writer.SetUp(ctx, s)
}

func (w *writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	w.enter("writer.PrepareLocalPlan")
	return w.Writer.PrepareLocalPlan(ctx, p)
}

func (w *writer) PrepareGlobalPlan(ctx context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	w.enter("writer.PrepareGlobalPlan")
	return w.Writer.PrepareGlobalPlan(ctx, ps)
}

func (w *writer) WriteData(ctx context.Context, p *plan.SavePlan, d storage.Resolver) (*storage.WriteResults, error) {
	r, err := w.Writer.WriteData(ctx, p, d)
	w.enter("writer.WriteData") // when the files are there
	return r, err
}

func (w *writer) Finish(ctx context.Context, md *meta.Metadata, rs []*storage.WriteResults) error {
	w.enter("writer.Finish")
	err := w.Writer.Finish(ctx, md, rs)
	w.enter("writer.Finished") // when the checkpoint is there and nobody knows
	return err
}

type loadPlanner struct {
	plan.DefaultLoad
	trap
}

func (p *loadPlanner) SetUp(s plan.LoadSetup) error {
	p.enter("planner.SetUp")
	return p.DefaultLoad.SetUp(s)
}

func (p *loadPlanner) LocalPlan() (*plan.LoadPlan, error) {
	p.enter("planner.LocalPlan")
	return p.DefaultLoad.LocalPlan()
}

func (p *loadPlanner) GlobalPlan(ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	p.enter("planner.GlobalPlan")
	return p.DefaultLoad.GlobalPlan(ps)
}

func (p *loadPlanner) FinishPlan(q *plan.LoadPlan) (*plan.LoadPlan, error) {
	p.enter("planner.FinishPlan")
	return p.DefaultLoad.FinishPlan(q)
}

func (p *loadPlanner) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	p.enter("planner.ResolveTensor")
	return p.DefaultLoad.ResolveTensor(it)
}

func (p *loadPlanner) CommitTensor(it *plan.ReadItem, t *tensor.Tensor) error {
	p.enter("planner.CommitTensor")
	return p.DefaultLoad.CommitTensor(it, t)
}

type reader struct {
	storage.Reader
	trap
}

func (r *reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	r.enter("reader.ReadMetadata")
	return r.Reader.ReadMetadata(ctx)
}

func (r *reader) SetUp(ctx context.Context, md *meta.Metadata, s storage.Session) error {
	r.enter("reader.SetUp")
	return r.Reader.SetUp(ctx, md, s)
}

func (r *reader) PrepareLocalPlan(ctx context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	r.enter("reader.PrepareLocalPlan")
	return r.Reader.PrepareLocalPlan(ctx, p)
}

func (r *reader) PrepareGlobalPlan(ctx context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	r.enter("reader.PrepareGlobalPlan")
	return r.Reader.PrepareGlobalPlan(ctx, ps)
}

func (r *reader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	st, err := r.Reader.ReadData(ctx, p, dst)
	r.enter("reader.ReadData")
	return st, err
}

// counter is a value that comes from a method.
type counter struct {
	n int64
	trap
}

var _ cairn.Stateful = (*counter)(nil)

func (c *counter) State() (cairn.State, error) {
	c.enter("stateful.State")
	return cairn.State{"n": c.n}, nil
}

func (c *counter) LoadState(s cairn.State) error {
	c.enter("stateful.Load")
	c.n = s["n"].(int64)
	return nil
}

// CanShare says that a rank with this planner may read for others.
func (p *loadPlanner) CanShare() bool { return true }
