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
	bump := func(v *Var) func() { return func() { floats(v.data)[3]++ } }
	for name, c := range map[string]struct {
		f       func(g *Graph) *Var
		change  func()
		refused bool
	}{
		"a weight":             {func(g *Graph) *Var { return g.Linear(x, w, nil) }, bump(w), true},
		"an input":             {func(g *Graph) *Var { return g.Linear(x, w, nil) }, bump(x), true},
		"a view of a leaf":     {func(g *Graph) *Var { return g.Mul(g.Reshape(x, 4), g.Reshape(w, 4)) }, bump(w), true},
		"a part of a leaf":     {func(g *Graph) *Var { return g.GELU(g.Split(x, 1, 1)[1]) }, bump(x), true},
		"an unused part":       {func(g *Graph) *Var { return g.GELU(g.Split(x, 1, 1)[0]) }, bump(x), false},
		"row numbers":          {func(g *Graph) *Var { return g.Embedding(w, ids) }, func() { ids.Contents()[0] ^= 1 }, true},
		"classes":              {func(g *Graph) *Var { return g.CrossEntropy(x, ids) }, func() { ids.Contents()[0] ^= 1 }, true},
		"a checkpoint's input": {func(g *Graph) *Var { return g.Checkpoint(linearOf(w), nil, x) }, bump(x), true},
		"not needed":           {func(g *Graph) *Var { return g.Add(x, w) }, bump(w), false},
		"replaced": {func(g *Graph) *Var { return g.Linear(x, w, nil) },
			func() { must.Do(t, w.SetData(w.Data().Clone())) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := New(t.Context())
			loss := g.Sum(c.f(g))
			must.Do(t, g.Err())
			c.change()
			if err := g.Backward(loss, nil); errors.Is(err, ErrChanged) != c.refused || !c.refused && err != nil {
				t.Errorf("the backward pass = %v; want ErrChanged: %v", err, c.refused)
			}
		})
	}
}

func linearOf(w *Var) Func {
	return func(g *Graph, in ...*Var) *Var { return g.Linear(in[0], w, nil) }
}
