package examples

import (
	"context"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
)

// swapped loads the average of the weights in place of the weights.
type swapped struct{ plan.DefaultLoad }

// SetUp hands the default planner a state with the names of the checkpoint. The slots put
// loaded values at their places in the caller's state, which stays as it is.
func (s *swapped) SetUp(set plan.LoadSetup) error {
	slots, err := plan.Flatten(set.State)
	if err != nil {
		return err
	}
	set.State = plan.State{}
	for name, slot := range slots {
		set.State[strings.Replace(name, "model.", "average.", 1)] = slot
	}
	return s.DefaultLoad.SetUp(set)
}

func Example_rename() {
	ctx := context.Background()
	store := new(mem.Store)
	state := cairn.State{
		"model":   cairn.State{"w": floats([]int64{2}, 1, 2), "lr": 0.5},
		"average": cairn.State{"w": floats([]int64{2}, 3, 4), "lr": 0.25},
	}
	_, err := cairn.Save(ctx, store, state, nil)
	check(err)

	w := floats([]int64{2}, 0, 0)
	model := cairn.State{"w": w, "lr": 0.0}
	_, err = cairn.Load(ctx, store, cairn.State{"model": model}, &cairn.LoadOptions{Planner: &swapped{}})
	check(err)
	fmt.Println("w =", values(w), "lr =", model["lr"])

	// An option does the same without a planner.
	_, err = cairn.Load(ctx, store, cairn.State{"model": model}, &cairn.LoadOptions{
		Rename: func(fqn string) string { return strings.Replace(fqn, "model.", "average.", 1) },
	})
	check(err)
	// Output:
	// w = [3 4] lr = 0.25
}
