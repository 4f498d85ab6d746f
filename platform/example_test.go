package platform_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Four ranks make two groups and exchange values in each.
func ExampleGroups() {
	said := make([]string, 4)
	err := inproc.Run(context.Background(), 4, func(ctx context.Context, world group.Group) error {
		p := host.New(world)
		g, err := p.Split(ctx, p.World(), [][]int{{0, 1}, {2, 3}})
		if err != nil {
			return err
		}
		names, err := platform.AllGather(ctx, p, g, group.JSON[string](), fmt.Sprintf("rank %d", world.Rank()))
		said[world.Rank()] = fmt.Sprintf("%d of %v over %s: %s", g.Rank(), g.Ranks(), g.Backend(), strings.Join(names, ", "))
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range said {
		fmt.Println(s)
	}
	// Output:
	// 0 of [0 1] over inproc: rank 0, rank 1
	// 1 of [0 1] over inproc: rank 0, rank 1
	// 0 of [2 3] over inproc: rank 2, rank 3
	// 1 of [2 3] over inproc: rank 2, rank 3
}

func ExamplePartition() {
	parts, err := platform.Partition([]int{0, 4}, 8)
	fmt.Println(parts, err)
	_, err = platform.Partition([]int{0, 1, 3}, 8)
	fmt.Println(err)
	// Output:
	// [[0 4] [1 5] [2 6] [3 7]] <nil>
	// partition by [0 1 3]: irregular step between ranks 1 and 3: invalid argument
}

// Devices is a capability that the host does not have.
type Devices interface{ Devices() int }

func ExampleAs() {
	_, err := platform.As[Devices](host.New(nil))
	fmt.Println(err)
	_, err = platform.As[platform.SymmetricMemory](host.New(nil))
	fmt.Println(err)
	// Output:
	// platform host: platform_test.Devices: unsupported operation
	// <nil>
}

func ExampleMapTensors() {
	w, err := tensor.Of([]int64{2}, []float32{1, 2})
	if err != nil {
		log.Fatal(err)
	}
	half, err := platform.MapTensors(map[string]any{"w": w, "step": 7}, func(t *tensor.Tensor) (*tensor.Tensor, error) {
		return tensor.CastFloat(t, tensor.BFloat16)
	})
	fmt.Println(half, err)
	// Output: map[step:7 w:bfloat16[2]] <nil>
}

func ExampleMicroBatch() {
	x, err := tensor.Of([]int64{4}, []int64{1, 2, 3, 4})
	if err != nil {
		log.Fatal(err)
	}
	parts, err := platform.MicroBatch(2, platform.Batch{Args: []any{x, "train"}}, platform.BatchDims{})
	if err != nil {
		log.Fatal(err)
	}
	for _, b := range parts {
		v, err := tensor.Values[int64](b.Args[0].(*tensor.Tensor))
		fmt.Println(slices.Clone(v), b.Args[1], err)
	}
	// Output:
	// [1 2] train <nil>
	// [3 4] train <nil>
}
