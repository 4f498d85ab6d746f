package examples

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// materializing loads into a model that was built without memory: its tensors
// are placeholders, of which each has a dtype and a shape.
type materializing struct{ plan.DefaultLoad }

// SetUp gives the placeholders memory before the default planner looks at the
// state. The tensors stay the same objects, so the model has them too.
func (m *materializing) SetUp(s plan.LoadSetup) error {
	waiting, err := plan.Placeholders(s.State)
	if err != nil {
		return err
	}
	for name, t := range waiting {
		if err := t.Materialize(); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return m.DefaultLoad.SetUp(s)
}

func Example_materialize() {
	ctx := context.Background()
	store := new(mem.Store)
	_, err := cairn.Save(ctx, store, cairn.State{"model": cairn.State{"w": floats([]int64{2}, 1, 2)}}, nil)
	check(err)

	w, err := tensor.Placeholder(tensor.Float32, []int64{2})
	check(err)
	state := cairn.State{"model": cairn.State{"w": w}}

	// The default planner refuses it, on every rank, before anything is read.
	_, err = cairn.Load(ctx, store, state, nil)
	fmt.Println(errors.Is(err, tensor.ErrPlaceholder))

	_, err = cairn.Load(ctx, store, state, &cairn.LoadOptions{Planner: &materializing{}})
	check(err)
	fmt.Println(values(w))
	// Output:
	// true
	// [1 2]
}
