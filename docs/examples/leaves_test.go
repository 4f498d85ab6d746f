package examples

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// fresh loads into new memory and does not change the old tensors.
type fresh struct{ plan.DefaultLoad }

// SetUp replaces the tensors of the state, at any depth, before anything is loaded.
func (f *fresh) SetUp(s plan.LoadSetup) error {
	slots, err := plan.Flatten(s.State)
	if err != nil {
		return err
	}
	for _, slot := range slots {
		if t, ok := slot.Value().(*tensor.Tensor); ok {
			if err := slot.Set(t.Clone()); err != nil {
				return err
			}
		}
	}
	return f.DefaultLoad.SetUp(s)
}

// stepping counts the loads in a value of the state.
type stepping struct{ plan.DefaultLoad }

// LoadBytes lets the default planner set the value, and then changes it.
func (s *stepping) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	if err := s.DefaultLoad.LoadBytes(it, codec, data); err != nil || it.Dest.FQN != "model.loads" {
		return err
	}
	slot, err := s.Slot(it.Dest.FQN)
	if err != nil {
		return err
	}
	return slot.Set(slot.Value().(int) + 1)
}

func Example_leaves() {
	ctx := context.Background()
	store := new(mem.Store)
	saved := cairn.State{"model": cairn.State{"w": floats([]int64{2}, 1, 2), "loads": 3}}
	_, err := cairn.Save(ctx, store, saved, nil)
	check(err)

	old := floats([]int64{2}, 0, 0)
	model := cairn.State{"w": old, "loads": 0}
	_, err = cairn.Load(ctx, store, cairn.State{"model": model}, &cairn.LoadOptions{Planner: &fresh{}})
	check(err)
	fmt.Println("old:", values(old), "new:", values(model["w"].(*tensor.Tensor)))

	_, err = cairn.Load(ctx, store, cairn.State{"model": model}, &cairn.LoadOptions{Planner: &stepping{}})
	check(err)
	fmt.Println("loads:", model["loads"])
	// Output:
	// old: [0 0] new: [1 2]
	// loads: 4
}
