package examples

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/tensor"
)

// momentum is an optimizer: it keeps a tensor and a counter.
type momentum struct {
	average *tensor.Tensor
	steps   int
}

var _ cairn.Stateful = (*momentum)(nil)

// State returns the values to save. A load fills the same values: tensors in place, other
// values in the map.
func (m *momentum) State() (cairn.State, error) {
	return cairn.State{"average": m.average, "steps": m.steps}, nil
}

// LoadState takes the map that a load has filled.
func (m *momentum) LoadState(s cairn.State) error {
	steps, ok := s["steps"].(int)
	if !ok {
		return fmt.Errorf("steps are a %T: %w", s["steps"], cairn.ErrMismatch)
	}
	m.steps = steps
	return nil
}

func Example_stateful() {
	ctx := context.Background()
	store := new(mem.Store)
	trained := &momentum{average: floats([]int64{2}, 0.5, 0.25), steps: 40}
	_, err := cairn.Save(ctx, store, cairn.State{"optimizer": trained}, nil)
	check(err)

	fresh := &momentum{average: floats([]int64{2}, 0, 0)}
	_, err = cairn.Load(ctx, store, cairn.State{"optimizer": fresh}, nil)
	check(err)
	fmt.Println(fresh.steps, values(fresh.average))
	// Output:
	// 40 [0.5 0.25]
}
