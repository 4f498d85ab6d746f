package examples

import (
	"context"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

func Example_renameAndCast() {
	ctx := context.Background()
	store := new(mem.Store)
	state := cairn.State{"w": floats([]int64{2}, 1.5, 3.14159), "optimizer": cairn.State{"steps": 7}}
	_, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Planner: &plan.DefaultSave{
		Rename: func(fqn string) string { return "student/" + fqn },
		DType: func(_ string, d tensor.DType) tensor.DType {
			if d == tensor.Float32 {
				return tensor.BFloat16
			}
			return d
		},
	}})
	check(err)

	c, err := cairn.Open(ctx, store)
	check(err)
	defer c.Close()
	md, err := c.Metadata(ctx)
	check(err)
	fmt.Println("in the checkpoint:", strings.Join(md.Names(), ", "))
	e, err := c.Entry(ctx, "student/w")
	check(err)
	fmt.Println(e.Tensor.DType, e.NumBytes(), "bytes")

	w := floats([]int64{2}, 0, 0)
	_, err = cairn.Load(ctx, store, cairn.State{"w": w}, &cairn.LoadOptions{
		Rename: func(fqn string) string { return "student/" + fqn },
	})
	check(err)
	fmt.Println("in the state:", values(w))
	// Output:
	// in the checkpoint: student/optimizer.steps, student/w
	// bfloat16 4 bytes
	// in the state: [1.5 3.140625]
}
