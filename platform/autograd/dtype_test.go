package autograd

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// leafOf returns a leaf that has a gradient if its elements are floats.
func leafOf[E tensor.Element](t testing.TB, values ...E) *Var {
	t.Helper()
	v := Leaf(must.Get(tensor.Of([]int64{int64(len(values))}, values))(t))
	if isFloat(v.dtype()) {
		must.Do(t, v.RequireGrad(true))
	}
	return v
}

// 2²⁴+1 is the first integer that float32 cannot hold.
const beyond = 1<<24 + 1

func TestArithmeticIsOfTheOperands(t *testing.T) {
	x := leafOf[float64](t, beyond, 1)
	g := New(t.Context())
	y := g.Mul(g.Add(x, x), leafOf[float64](t, 1, 3))
	if d := cmp.Diff([]float64{2 * beyond, 6}, must.Get(tensor.Values[float64](y.Data()))(t)); d != "" {
		t.Errorf("the result (-want +got):\n%s", d)
	}
	loss := g.Sum(g.Mul(y, x))
	if v, err := loss.Item(); err != nil || v != 2*beyond*beyond+6 {
		t.Errorf("Item = %v, %v; want %v", v, err, 2*beyond*beyond+6)
	}
	must.Do(t, g.Backward(loss, nil))
	if d := cmp.Diff([]float64{4 * beyond, 12}, must.Get(tensor.Values[float64](x.Grad()))(t)); d != "" {
		t.Errorf("the gradient (-want +got):\n%s", d)
	}
}

// Operators compute with floats of one arithmetic. Operators that move elements take all.
func TestOtherDTypesAreRefused(t *testing.T) {
	ints, double, single := leafOf[int64](t, beyond), leafOf[float64](t, 1), leafOf[float32](t, 1)
	for name, f := range map[string]func(g *Graph) *Var{
		"integers":              func(g *Graph) *Var { return g.Add(ints, ints) },
		"an integer operand":    func(g *Graph) *Var { return g.Mul(single, ints) },
		"bools":                 func(g *Graph) *Var { return g.Sum(leafOf(t, true)) },
		"complex numbers":       func(g *Graph) *Var { return g.Scale(leafOf[complex64](t, 1), 2) },
		"a cast of integers":    func(g *Graph) *Var { return g.Cast(ints, tensor.Float32) },
		"a cast of complexes":   func(g *Graph) *Var { return g.Cast(leafOf[complex64](t, 1i), tensor.Float32) },
		"float64 with float32":  func(g *Graph) *Var { return g.Add(double, single) },
		"float32 with float64":  func(g *Graph) *Var { return g.Mul(single, double) },
		"a cast of one operand": func(g *Graph) *Var { return g.Mul(double, g.Cast(double, tensor.BFloat16)) },
	} {
		g := New(t.Context())
		if f(g); !errors.Is(g.Err(), tensor.ErrDType) {
			t.Errorf("%s: %v; want ErrDType", name, g.Err())
		}
	}
	g := New(t.Context())
	moved := g.Cat(0, g.Reshape(ints, 1), ints)
	if d := cmp.Diff([]int64{beyond, beyond}, must.Get(tensor.Values[int64](moved.Data()))(t)); d != "" || g.Err() != nil {
		t.Errorf("moved integers: %v\n%s", g.Err(), d)
	}
}

// A cast leads from one arithmetic to the other, and so does its gradient.
func TestCastBetweenArithmetics(t *testing.T) {
	half := must.Get(tensor.Cast(leafOf[float32](t, 3).data, tensor.BFloat16))(t)
	x, y := leafOf[float64](t, 2), Leaf(half)
	must.Do(t, y.RequireGrad(true))
	g := New(t.Context())
	must.Do(t, g.Backward(g.Sum(g.Mul(x, g.Cast(y, tensor.Float64))), nil))
	if x.Grad().DType() != tensor.Float64 || y.Grad().DType() != tensor.Float32 || floats(x.Grad())[0] != 3 || floats(y.Grad())[0] != 2 {
		t.Errorf("gradients %v of %v and %v of %v; want 3 of float64 and 2 of float32", floats(x.Grad()), x.Grad(), floats(y.Grad()), y.Grad())
	}
}

// The collectives have gradients of float64, with the digits of float64.
func TestCollectiveGradientsOfFloat64(t *testing.T) {
	mesh := shard.Mesh{Shape: []int{2}}
	partial, whole := shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Partial("avg")}}, shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Replicate()}}
	const scale = 1 + 1.0/(1<<40)
	for name, c := range map[string]struct {
		f    func(g *Graph, comm platform.TensorComm, x *Var) *Var
		want float64
	}{
		"all-reduce":     {func(g *Graph, c platform.TensorComm, x *Var) *Var { return g.AllReduce(c, x, collective.Sum) }, 2 * scale},
		"average":        {func(g *Graph, c platform.TensorComm, x *Var) *Var { return g.AllReduce(c, x, collective.Avg) }, scale},
		"largest":        {func(g *Graph, c platform.TensorComm, x *Var) *Var { return g.AllReduce(c, x, collective.Max) }, scale},
		"reduce-scatter": {func(g *Graph, c platform.TensorComm, x *Var) *Var { return g.ReduceScatter(c, x, 0, collective.Avg) }, scale / 2},
		"all-gather":     {func(g *Graph, c platform.TensorComm, x *Var) *Var { return g.AllGatherConcat(c, x, 0, 4) }, 2 * scale},
		"all-to-all":     {func(g *Graph, c platform.TensorComm, x *Var) *Var { return g.AllToAll(c, x, 2) }, scale},
		"splits": {func(g *Graph, c platform.TensorComm, x *Var) *Var {
			return g.Await(g.AllToAllSplitsAsync(c, g.AllToAllSplits(c, x, platform.Splits{}), platform.Splits{}))
		}, scale},
		"exchange": {func(g *Graph, c platform.TensorComm, x *Var) *Var { return g.Exchange(c, x, 1-c.Rank()) }, scale},
		"redistribute": {func(g *Graph, c platform.TensorComm, x *Var) *Var {
			return g.Redistribute(c, x, []int64{2}, partial, whole)
		}, scale},
	} {
		t.Run(name, func(t *testing.T) {
			mustRanks(t, 2, func(r rank) error {
				x := leafOf[float64](t, 1, 1)
				g := New(r)
				err := g.Backward(g.Sum(g.Scale(c.f(g, r, x), scale)), nil)
				if err == nil && !cmp.Equal([]float64{c.want, c.want}, must.Get(tensor.Values[float64](x.Grad()))(t)) {
					err = fmt.Errorf("gradient %v; want %v", values[float64](x.Grad()), c.want)
				}
				return err
			})
		})
	}
}
