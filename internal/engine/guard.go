package engine

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Storage calls planners from goroutines of its own, where a panic would end
// the process and leave the other ranks waiting. These make it an error.

// source is what a save writes.
type source struct{ plan.SavePlanner }

var (
	_ storage.Resolver = source{}
	_ storage.Aliaser  = source{}
)

func (s source) Resolve(it *plan.WriteItem) (d plan.Data, err error) {
	err = group.Catch(func() (err error) {
		d, err = s.SavePlanner.Resolve(it)
		return err
	})
	if err == nil && it.Kind != plan.KindBytes && d.Tensor == nil && d.Stream == nil {
		err = fmt.Errorf("%w: %q: the planner's Resolve returned no tensor and no error", plan.ErrProtocol, it.FQN())
	}
	return d, err
}

// Alias asks a planner that is a storage.Aliaser, as the default one is.
func (s source) Alias(it *plan.WriteItem) (key any) {
	if a, ok := s.SavePlanner.(storage.Aliaser); ok {
		_ = group.Catch(func() error { key = a.Alias(it); return nil }) // it is only a hint
	}
	return key
}

// target is what a load fills.
type target struct{ plan.LoadPlanner }

var _ storage.Receiver = target{}

func (t target) ResolveTensor(it *plan.ReadItem) (x *tensor.Tensor, err error) {
	err = group.Catch(func() (err error) {
		x, err = t.LoadPlanner.ResolveTensor(it)
		return err
	})
	if err == nil && x == nil {
		err = fmt.Errorf("%w: %q: the planner's ResolveTensor returned no tensor and no error", plan.ErrProtocol, it.Dest.FQN)
	}
	return x, err
}

func (t target) CommitTensor(it *plan.ReadItem, x *tensor.Tensor) error {
	return group.Catch(func() error { return t.LoadPlanner.CommitTensor(it, x) })
}

func (t target) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	return group.Catch(func() error { return t.LoadPlanner.LoadBytes(it, codec, data) })
}
