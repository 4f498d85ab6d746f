package examples

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

func Example_properties() {
	ctx := context.Background()
	store := new(mem.Store)
	w := floats([]int64{1, 2, 1, 1}, 1, 2)
	trained := meta.Properties{RequiresGrad: true, MemoryFormat: "channels_last"}
	_, err := cairn.Save(ctx, store, cairn.State{"w": plan.WithProperties(plan.Whole(w), trained)}, nil)
	check(err)

	c, err := cairn.Open(ctx, store)
	check(err)
	defer c.Close()
	e, err := c.Entry(ctx, "w")
	check(err)
	fmt.Println(e.Tensor.DType, e.Tensor.RequiresGrad, e.Tensor.MemoryFormat)
	// Output:
	// float32 true channels_last
}
