package enginetest

import (
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// SavePlanner is the default planner of saves, with a hook.
type SavePlanner struct {
	plan.DefaultSave
	Hook Hook
}

// SetUp calls the hook, and then the method.
func (p *SavePlanner) SetUp(s plan.SaveSetup) error {
	if err := p.Hook.at("planner.SetUp"); err != nil {
		return err
	}
	return p.DefaultSave.SetUp(s)
}

// LocalPlan calls the hook, and then the method.
func (p *SavePlanner) LocalPlan() (*plan.SavePlan, error) {
	if err := p.Hook.at("planner.LocalPlan"); err != nil {
		return nil, err
	}
	return p.DefaultSave.LocalPlan()
}

// GlobalPlan calls the hook, and then the method.
func (p *SavePlanner) GlobalPlan(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	if err := p.Hook.at("planner.GlobalPlan"); err != nil {
		return nil, nil, err
	}
	return p.DefaultSave.GlobalPlan(ps)
}

// FinishPlan calls the hook, and then the method.
func (p *SavePlanner) FinishPlan(q *plan.SavePlan) (*plan.SavePlan, error) {
	if err := p.Hook.at("planner.FinishPlan"); err != nil {
		return nil, err
	}
	return p.DefaultSave.FinishPlan(q)
}

// Resolve calls the hook for tensors, which are asked for in goroutines of the
// storage's own, and then the method.
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
	Share bool // what CanShare says
}

var _ plan.Sharer = (*LoadPlanner)(nil)

// CanShare returns Share.
func (p *LoadPlanner) CanShare() bool { return p.Share }

// SetUp calls the hook, and then the method.
func (p *LoadPlanner) SetUp(s plan.LoadSetup) error {
	if err := p.Hook.at("planner.SetUp"); err != nil {
		return err
	}
	return p.DefaultLoad.SetUp(s)
}

// LocalPlan calls the hook, and then the method.
func (p *LoadPlanner) LocalPlan() (*plan.LoadPlan, error) {
	if err := p.Hook.at("planner.LocalPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.LocalPlan()
}

// GlobalPlan calls the hook, and then the method.
func (p *LoadPlanner) GlobalPlan(ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	if err := p.Hook.at("planner.GlobalPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.GlobalPlan(ps)
}

// FinishPlan calls the hook, and then the method.
func (p *LoadPlanner) FinishPlan(q *plan.LoadPlan) (*plan.LoadPlan, error) {
	if err := p.Hook.at("planner.FinishPlan"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.FinishPlan(q)
}

// ResolveTensor calls the hook, and then the method.
func (p *LoadPlanner) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	if err := p.Hook.at("planner.ResolveTensor"); err != nil {
		return nil, err
	}
	return p.DefaultLoad.ResolveTensor(it)
}

// CommitTensor calls the hook, and then the method.
func (p *LoadPlanner) CommitTensor(it *plan.ReadItem, x *tensor.Tensor) error {
	if err := p.Hook.at("planner.CommitTensor"); err != nil {
		return err
	}
	return p.DefaultLoad.CommitTensor(it, x)
}

// LoadBytes calls the hook, and then the method.
func (p *LoadPlanner) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	if err := p.Hook.at("planner.LoadBytes"); err != nil {
		return err
	}
	return p.DefaultLoad.LoadBytes(it, codec, data)
}
