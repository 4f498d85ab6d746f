package nn_test

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/nn"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A model is a module of modules. One step computes its gradients, clips them and changes
// its parameters.
func Example() {
	ctx := context.Background()
	init := nn.Normal(0.1, rand.New(rand.NewPCG(1, 1)))
	up, down := nn.NewLinear(2, 8, true, init), nn.NewLinear(8, 2, true, init)
	model := nn.New(nn.Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
		return down.Call(g, g.GELU(up.Call(g, in[0])))
	})
	model.AddChild("up", up)
	model.AddChild("down", down)
	check(model.Err())

	x, err := tensor.Of([]int64{2, 2}, []float32{1, 0, 0, 1})
	check(err)
	classes, err := tensor.Of([]int64{2}, []int64{1, 0})
	check(err)
	var first, last float64
	for step := range 50 {
		g := autograd.New(ctx)
		loss := g.CrossEntropy(model.Call(g, autograd.Leaf(x)), classes)
		check(g.Backward(loss, nil))
		if last, err = loss.Item(); step == 0 {
			first = last
		}
		check(err)
		_, err := nn.ClipGradNorm(ctx, model.Params(), nil, 1, 2, nil)
		check(err)
		for _, p := range model.Params() {
			w, err := tensor.Values[float32](p.Local())
			check(err)
			grad, err := tensor.Values[float32](p.Var().Grad())
			check(err)
			for i := range w {
				w[i] -= 0.5 * grad[i]
			}
			p.Var().SetGrad(nil)
		}
	}
	for name, p := range model.Params() {
		fmt.Println(name, p.Shape())
	}
	fmt.Println("the loss falls to a tenth:", last < first/10)
	// Output:
	// up.weight [8 2]
	// up.bias [8]
	// down.weight [2 8]
	// down.bias [2]
	// the loss falls to a tenth: true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
