package shard_test

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/shard"
)

// Weights that tensor parallelism cut by rows and FSDP cut again, on a mesh of
// two by two.
func ExamplePlaced() {
	layout := shard.Placed{
		Mesh:       shard.Mesh{Shape: []int{2, 2}, Names: []string{"dp", "tp"}},
		Placements: []shard.Placement{shard.StridedShard(0, 2), shard.Shard(0)},
	}
	for rank := range layout.Mesh.Size() {
		parts, err := layout.Parts([]int64{20, 12}, rank)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(rank, parts[0].Box)
	}
	// Output:
	// 0 [0 0]+[5 12]
	// 1 [10 0]+[5 12]
	// 2 [5 0]+[5 12]
	// 3 [15 0]+[5 12]
}
