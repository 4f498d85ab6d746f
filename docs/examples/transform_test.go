package examples

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// scaled multiplies the loaded elements: the checkpoint has small integers, the state wants
// numbers.
type scaled struct {
	plan.DefaultLoad
	by float32
}

// ResolveTensor has the bytes read into memory of their own, which the storage
// fills and converts to float32.
func (s *scaled) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return tensor.New(tensor.Float32, it.Lengths)
}

// CommitTensor gets that memory back, full and verified. Items come from several
// goroutines at once, but no two of them fill the same elements.
func (s *scaled) CommitTensor(it *plan.ReadItem, t *tensor.Tensor) error {
	v, err := tensor.Values[float32](t)
	if err != nil {
		return err
	}
	for i := range v {
		v[i] *= s.by
	}
	place, err := s.DefaultLoad.ResolveTensor(it)
	if err != nil {
		return err
	}
	return tensor.Convert(place, t, tensor.CastAny)
}

func Example_transformOnLoad() {
	ctx := context.Background()
	store := new(mem.Store)
	small, err := tensor.Of([]int64{3}, []int8{-4, 0, 100})
	check(err)
	_, err = cairn.Save(ctx, store, cairn.State{"w": small}, nil)
	check(err)

	w := floats([]int64{3}, 0, 0, 0)
	_, err = cairn.Load(ctx, store, cairn.State{"w": w}, &cairn.LoadOptions{Planner: &scaled{by: 0.25}})
	check(err)
	fmt.Println(values(w))
	// Output:
	// [-1 0 25]
}
