package examples

import (
	"context"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// late gives a placeholder memory when its first bytes are about to be read.
type late struct {
	plan.DefaultLoad // with AllowPlaceholders

	mu   sync.Mutex
	made map[string]*tensor.Tensor // by name; guarded by mu
}

// ResolveTensor returns a part of new memory. A tensor that was saved in several chunks
// comes in several items, which share the memory.
func (l *late) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	slot, err := l.Slot(it.Dest.FQN)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.made[it.Dest.FQN]
	if t == nil {
		hollow := slot.Value().(*tensor.Tensor)
		if t, err = tensor.New(hollow.DType(), hollow.Shape()); err != nil {
			return nil, err
		}
		l.made[it.Dest.FQN] = t
	}
	return t.Narrow(it.DestBox())
}

// CommitTensor puts the new tensor in the place of the placeholder.
func (l *late) CommitTensor(it *plan.ReadItem, _ *tensor.Tensor) error {
	slot, err := l.Slot(it.Dest.FQN)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slot.Set(l.made[it.Dest.FQN])
}

func Example_materializeLate() {
	ctx := context.Background()
	store := new(mem.Store)
	_, err := cairn.Save(ctx, store, cairn.State{"model": cairn.State{"w": floats([]int64{2}, 1, 2)}}, nil)
	check(err)

	hollow, err := tensor.Placeholder(tensor.Float32, []int64{2})
	check(err)
	model := cairn.State{"w": hollow}
	_, err = cairn.Load(ctx, store, cairn.State{"model": model}, &cairn.LoadOptions{Planner: &late{
		DefaultLoad: plan.DefaultLoad{AllowPlaceholders: true}, made: map[string]*tensor.Tensor{},
	}})
	check(err)
	fmt.Println(values(model["w"].(*tensor.Tensor)), "placeholder:", hollow.IsPlaceholder())
	// Output:
	// [1 2] placeholder: true
}
