package nn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// paramOf returns a parameter with a gradient of the given values, both of the dtype.
func paramOf(t testingT, d tensor.DType, grad ...float64) *Param {
	t.Helper()
	p, err := ZeroParam(d, []int64{int64(len(grad))}, true)
	must.Do(t, err)
	g, err := tensor.Of([]int64{int64(len(grad))}, grad)
	must.Do(t, err)
	g, err = tensor.Cast(g, d)
	must.Do(t, err)
	p.leaf.SetGrad(g)
	return p
}

// Gradients of every dtype are clipped together, each in its own arithmetic.
func TestClipGradNormOfDTypes(t *testing.T) {
	const digits = 1 + 1.0/(1<<40) // more than float32 has
	params := map[string]*Param{
		"double": paramOf(t, tensor.Float64, 3*digits, 0), "single": paramOf(t, tensor.Float32, 4),
		"brain": paramOf(t, tensor.BFloat16, 12), "half": paramOf(t, tensor.Float16, -84),
	}
	want := math.Sqrt(9*digits*digits + 16 + 144 + 84*84)
	norm, err := ClipGradNorm(t.Context(), maps.All(params), nil, want/2, 2, nil)
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-13*math.Abs(b) } // the order of the map varies
	if err != nil || !near(norm, want) {
		t.Fatalf("ClipGradNorm = %v, %v; want %v", norm, err, want)
	}
	by := want / 2 / (want + 1e-6)
	for name, first := range map[string]float64{
		"double": 3 * digits * by, "single": float64(4 * float32(by)), "brain": 6, "half": -42, // the nearest
	} {
		g := must.Get(tensor.Cast(params[name].leaf.Grad(), tensor.Float64))(t)
		if got := must.Get(tensor.Values[float64](g))(t)[0]; !near(got, first) || params[name].leaf.Grad().DType() != params[name].Local().DType() {
			t.Errorf("%s: gradient %v of %v; want %v", name, got, params[name].leaf.Grad(), first)
		}
	}
	if norm, err := ClipGradNorm(t.Context(), maps.All(params), nil, 1, math.Inf(1), nil); err != nil || norm != 42 {
		t.Errorf("the largest element = %v, %v; want 42", norm, err)
	}
}

// The sum over replicas has the dtype of the gradients. Ranks that differ all get an error.
func TestReduceGradsOfDTypes(t *testing.T) {
	mesh := shard.Mesh{Shape: []int{2}}
	replicated := shard.Placed{Mesh: mesh, Placements: []shard.Placement{shard.Replicate()}}
	for name, dtypes := range map[string][2]tensor.DType{
		"float64": {tensor.Float64, tensor.Float64}, "bfloat16": {tensor.BFloat16, tensor.BFloat16},
		"different": {tensor.Float64, tensor.BFloat16},
	} {
		errs := onRanks(t.Context(), 2, func(ctx context.Context, pf platform.Platform) error {
			rank := pf.World().Rank()
			p := paramOf(t, dtypes[rank], 1.5)
			grad := p.leaf.Grad()
			must.Do(t, p.SetLayout(replicated, rank))
			p.leaf.SetGrad(grad)
			err := ReduceGrads(ctx, maps.All(map[string]*Param{"p": p}), must.Value(Connect(ctx, pf, mesh)))
			switch {
			case name == "different" && (!errors.Is(err, group.ErrDisagree) || !strings.Contains(err.Error(), "bfloat16") || errors.Is(err, collective.ErrBroken)):
				return fmt.Errorf("ReduceGrads = %v; want ErrDisagree that names the dtypes, before the sum", err)
			case name == "different":
				if !tensor.Equal(grad, must.Value(tensor.Full(dtypes[rank], []int64{1}, float32(1.5)))) {
					return fmt.Errorf("the gradient is %v; want what it was", grad.Contents())
				}
				return nil
			case err == nil && !tensor.Equal(p.leaf.Grad(), must.Value(tensor.Full(dtypes[rank], []int64{1}, float32(3)))):
				err = fmt.Errorf("the gradient is %v of %v; want 3", p.leaf.Grad().Contents(), p.leaf.Grad())
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Hooks see and replace the gradients of float64 modules.
func TestHooksOfFloat64(t *testing.T) {
	w := paramOf(t, tensor.Float64, 0)
	w.leaf.SetGrad(nil)
	m := New(Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var { return g.Add(in[0], w.Value(g)) })
	m.AddParam("w", w)
	m.BeforeBackward(Last, func(_ *Module, out *tensor.Tensor) (*tensor.Tensor, error) {
		return tensor.Full(out.DType(), out.Shape(), 1+1.0/(1<<40))
	})
	g := autograd.New(t.Context())
	x := autograd.Leaf(must.Get(tensor.Of([]int64{1}, []float64{1}))(t))
	must.Do(t, g.Backward(m.Call(g, x), nil))
	if d := cmp.Diff([]float64{1 + 1.0/(1<<40)}, must.Get(tensor.Values[float64](w.leaf.Grad()))(t)); d != "" {
		t.Errorf("the gradient (-want +got):\n%s", d)
	}
}
