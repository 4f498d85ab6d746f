package autograd

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A tensor that the backward pass needs and that was changed in between is refused, however
// it was changed. A tensor that the backward pass does not need may change.
func TestChangedTensorsAreRefused(t *testing.T) {
	ids, err := tensor.Of([]int64{2}, []int64{0, 1})
	must.Do(t, err)
	x, w := leaf(t, []int64{2, 2}, 1, 2, 3, 4), leaf(t, []int64{2, 2}, 5, 6, 7, 8)
	zeros, frozen := leaf(t, []int64{2, 2}, 0, 0, 0, 0), Leaf(w.data.Clone())
	bump := func(v *Var) func() { return func() { floats(v.data)[3]++ } }
	mul := func(g *Graph, in ...*Var) *Var { return g.Mul(in[0], w) }
	for name, c := range map[string]struct {
		f      func(g *Graph) *Var
		change func()
		want   error
	}{
		"a weight":             {func(g *Graph) *Var { return g.Linear(x, w, nil) }, bump(w), ErrChanged},
		"an input":             {func(g *Graph) *Var { return g.Linear(x, w, nil) }, bump(x), ErrChanged},
		"a view of a leaf":     {func(g *Graph) *Var { return g.Mul(g.Reshape(x, 4), g.Reshape(w, 4)) }, bump(w), ErrChanged},
		"a view of a view":     {func(g *Graph) *Var { return g.GELU(g.Split(g.Reshape(x, 4), 1, 3)[1]) }, bump(x), ErrChanged},
		"a part of a leaf":     {func(g *Graph) *Var { return g.GELU(g.Split(x, 1, 1)[1]) }, bump(x), ErrChanged},
		"an unused part":       {func(g *Graph) *Var { return g.GELU(g.Split(x, 1, 1)[0]) }, bump(x), nil},
		"row numbers":          {func(g *Graph) *Var { return g.Embedding(w, ids) }, func() { ids.Contents()[0] ^= 1 }, ErrChanged},
		"classes":              {func(g *Graph) *Var { return g.CrossEntropy(x, ids) }, func() { ids.Contents()[0] ^= 1 }, ErrChanged},
		"a checkpoint's input": {func(g *Graph) *Var { return g.Checkpoint(linearOf(w), nil, x) }, bump(x), ErrChanged},
		// The second run does not show these changes in its results.
		"a weight of a kept result":        {func(g *Graph) *Var { return g.Checkpoint(linearOf(w), saveAll, x) }, bump(w), ErrReplay},
		"a frozen weight of a kept result": {func(g *Graph) *Var { return g.Checkpoint(linearOf(frozen), saveAll, x) }, bump(frozen), ErrReplay},
		"a weight behind kept results": {func(g *Graph) *Var {
			return g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.Linear(in[0], g.Reshape(w, 2, 2), nil) }, saveAll, x)
		}, bump(w), ErrReplay},
		"row numbers of a kept result": {func(g *Graph) *Var {
			return g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.Add(in[0], g.Embedding(w, ids)) }, saveAll, x)
		}, func() { ids.Contents()[0] ^= 1 }, ErrReplay},
		"a weight times zero": {func(g *Graph) *Var { return g.Checkpoint(mul, nil, zeros) }, bump(w), ErrReplay},
		"a weight of an inner checkpoint": {func(g *Graph) *Var {
			return g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.Scale(g.Checkpoint(mul, saveAll, in...), 2) }, nil, zeros)
		}, bump(w), ErrReplay},
		"a view that an operator of one's own saves": {func(g *Graph) *Var { return square(g, x) }, bump(x), ErrChanged},
		"not needed": {func(g *Graph) *Var { return g.Add(x, w) }, bump(w), nil},
		"replaced": {func(g *Graph) *Var { return g.Linear(x, w, nil) },
			func() { must.Do(t, w.SetData(w.Data().Clone())) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := New(t.Context())
			loss := g.Sum(c.f(g))
			must.Do(t, g.Err())
			c.change()
			if err := g.Backward(loss, nil); !errors.Is(err, c.want) {
				t.Errorf("the backward pass = %v; want %v", err, c.want)
			}
		})
	}
}

func linearOf(w *Var) Func {
	return func(g *Graph, in ...*Var) *Var { return g.Linear(in[0], w, nil) }
}

// square saves another view of its operand than the operand itself.
func square(g *Graph, x *Var) *Var {
	return g.Apply(Op{
		Name: "square", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			out := like(x.data)
			for i, v := range floats(x.data) {
				floats(out)[i] = v * v
			}
			return out, []*tensor.Tensor{view(x.data, 4)}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			d := like(p.Grad)
			for i, v := range floats(p.Saved[0]) {
				floats(d)[i] = 2 * v * floats(p.Grad)[i]
			}
			return []*tensor.Tensor{d}, nil
		},
	})
}
