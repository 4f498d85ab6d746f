package examples

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/platform/nn"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// perceptron returns a model of two layers that finds the class of a point.
func perceptron(init nn.Init) *nn.Module {
	up, down := nn.NewLinear(4, 10, true, init), nn.NewLinear(10, 3, true, init)
	m := nn.New(nn.Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
		return down.Call(g, g.GELU(up.Call(g, in[0])))
	})
	m.AddChild("up", up)
	m.AddChild("down", down)
	return m
}

// shareRows cuts the rows of each parameter over the ranks of the world. A layer gathers
// all rows when it runs.
func shareRows(ctx context.Context, p platform.Platform, m *nn.Module) (*nn.Comms, error) {
	layout := shard.Rows(p.World().Size())
	comms, err := nn.Connect(ctx, p, layout.Mesh)
	if err != nil {
		return nil, err
	}
	all, err := comms.Line(layout.Mesh, 0)
	if err != nil {
		return nil, err
	}
	for _, param := range m.Params() {
		if err := param.SetLayout(layout, p.World().Rank()); err != nil {
			return nil, err
		}
		param.SetView(func(g *autograd.Graph) *autograd.Var {
			return g.AllGatherConcat(all, param.Var(), 0, param.Shape()[0])
		})
	}
	return comms, m.Err()
}

// descend does a step of gradient descent. scale is 1 divided by the number of ranks: the
// sum of the ranks' losses is then the mean over the batch. It returns this rank's part.
func descend(ctx context.Context, m *nn.Module, comms *nn.Comms, x, classes *tensor.Tensor, scale float64) (*tensor.Tensor, error) {
	g := autograd.New(ctx)
	loss := g.Scale(g.CrossEntropy(m.Call(g, autograd.Leaf(x)), classes), scale)
	if err := g.Backward(loss, nil); err != nil { // also the error of the operators before
		return nil, err
	}
	// Sums the gradients of replicated parameters. There are none if all parameters are cut.
	if err := nn.ReduceGrads(ctx, m.Params(), comms); err != nil {
		return nil, err
	}
	if _, err := nn.ClipGradNorm(ctx, m.Params(), comms, 1, 2, nil); err != nil {
		return nil, err
	}
	for _, p := range m.Params() {
		for i, d := range values(p.Var().Grad()) {
			values(p.Local())[i] -= 0.5 * d
		}
		p.Var().SetGrad(nil)
	}
	return loss.Data(), nil
}

// trainModel does some steps and saves the model in the background. It begins with the
// checkpoint in the store, unless first is 0. It returns the mean loss of the last step.
func trainModel(ctx context.Context, world group.Group, store blob.Store, first, end int) (float32, error) {
	// Every rank makes the same values and keeps its share of them.
	p, m := host.New(world), perceptron(nn.Normal(0.3, rand.New(rand.NewPCG(1, 1))))
	comms, err := shareRows(ctx, p, m)
	if err != nil {
		return 0, err
	}
	if first > 0 {
		if _, err := cairn.Load(ctx, store, cairn.State{"model": m}, &cairn.LoadOptions{Group: world}); err != nil {
			return 0, err
		}
	}
	var loss *tensor.Tensor
	for step := first; step < end; step++ {
		x, classes := points(step, world.Rank(), world.Size())
		if loss, err = descend(ctx, m, comms, x, classes, 1/float64(world.Size())); err != nil {
			return 0, err
		}
	}
	saving, err := cairn.SaveAsync(ctx, store, cairn.State{"model": m}, &cairn.AsyncOptions{
		SaveOptions: cairn.SaveOptions{Group: world},
	})
	if err != nil {
		return 0, err
	}
	all, err := comms.Line(shard.Rows(world.Size()).Mesh, 0)
	if err != nil {
		return 0, err
	}
	if err := all.AllReduce(ctx, loss, collective.Sum); err != nil {
		return 0, err
	}
	_, err = saving.Wait(ctx)
	return values(loss)[0], err
}

// points returns a rank's part of the twelve points of a step, and their classes.
func points(step, rank, ranks int) (x, classes *tensor.Tensor) {
	r := rand.New(rand.NewPCG(uint64(step), 5))
	at, class := make([]float32, 12*4), make([]int64, 12)
	for i := range class {
		class[i] = r.Int64N(3)
		for j := range 4 {
			at[4*i+j] = r.Float32() - 0.5
		}
		at[4*i+int(class[i])]++
	}
	n := 12 / ranks
	classes, err := tensor.Of([]int64{int64(n)}, class[rank*n:(rank+1)*n])
	check(err)
	return floats([]int64{int64(n), 4}, at[4*rank*n:4*(rank+1)*n]...), classes
}

// A model without memory is cut and then gets the memory of each rank's share. A load fills
// it.
func TestModelWithoutMemoryIsLoaded(t *testing.T) {
	store := new(mem.Store)
	if _, err := trainModel(t.Context(), group.Solo(), store, 0, 1); err != nil {
		t.Fatal(err)
	}
	err := inproc.Run(t.Context(), 3, func(ctx context.Context, g group.Group) error {
		m := perceptron(nn.Meta)
		if _, err := shareRows(ctx, host.New(g), m); err != nil {
			return err
		}
		if _, err := cairn.Load(ctx, store, cairn.State{"model": m}, &cairn.LoadOptions{Group: g}); !errors.Is(err, tensor.ErrPlaceholder) {
			return fmt.Errorf("load without memory: %w", err)
		}
		for _, p := range m.Params() {
			if err := p.Local().Materialize(); err != nil {
				return err
			}
		}
		if _, err := cairn.Load(ctx, store, cairn.State{"model": m}, &cairn.LoadOptions{Group: g}); err != nil {
			return err
		}
		if w := values(m.Param("up.weight").Local()); w[0] == 0 {
			return errors.New("the weight is not loaded")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A model that two ranks have trained goes on with three, and learns as with one.
func TestModelGoesOnWithOtherRanks(t *testing.T) {
	train := func(ranks int, store blob.Store, first, end int) (loss float32) {
		err := inproc.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
			l, err := trainModel(ctx, g, store, first, end)
			if g.Rank() == 0 {
				loss = l
			}
			return err
		})
		if err != nil {
			t.Fatal(fmt.Errorf("%d ranks: %w", ranks, err))
		}
		return loss
	}
	begin, want := train(1, new(mem.Store), 0, 1), train(1, new(mem.Store), 0, 40)
	store := new(mem.Store)
	train(2, store, 0, 20)
	got := train(3, store, 20, 40)
	if math.Abs(float64(got-want)) > 1e-5*float64(want) {
		t.Errorf("the loss is %v; one rank has %v", got, want)
	}
	if want > begin/3 {
		t.Errorf("the loss fell from %v to %v only", begin, want)
	}
}
