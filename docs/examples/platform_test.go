package examples

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/tensor"
)

// train runs on each rank: two groups of two average their gradients, and all ranks save together.
func train(ctx context.Context, world group.Group, store *mem.Store) error {
	p, err := platform.Open("host", world, host.Factory())
	if err != nil {
		return err
	}
	parts, err := platform.Partition([]int{0, 2}, p.World().Size())
	if err != nil {
		return err
	}
	replicas, err := p.Split(ctx, p.World(), parts)
	if err != nil {
		return err
	}
	tensors, err := platform.As[platform.TensorComms](p)
	if err != nil {
		return err
	}
	comm, err := tensors.TensorComm(replicas)
	if err != nil {
		return err
	}
	grad := floats([]int64{2}, float32(p.World().Rank()), 1)
	if err := comm.AllReduce(ctx, grad, collective.Avg); err != nil {
		return err
	}
	everybody, err := platform.Comm(p.World())
	if err != nil {
		return err
	}
	name := fmt.Sprintf("grad.%d", replicas.Ranks()[0])
	_, err = cairn.Save(ctx, store, cairn.State{name: grad}, &cairn.SaveOptions{Group: everybody})
	return err
}

func Example_platform() {
	ctx, store := context.Background(), new(mem.Store)
	check(inproc.Run(ctx, 4, func(ctx context.Context, world group.Group) error { return train(ctx, world, store) }))

	state := cairn.State{"grad.0": floats([]int64{2}, 0, 0), "grad.1": floats([]int64{2}, 0, 0)}
	_, err := cairn.Load(ctx, store, state, nil)
	check(err)
	fmt.Println(values(state["grad.0"].(*tensor.Tensor)), values(state["grad.1"].(*tensor.Tensor)))
	// Output: [1 1] [2 1]
}
