package autograd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// withLast returns a leaf of zeros with the last dimension of x.
func withLast(x *Var, leading ...int64) *Var {
	n := int64(1)
	if s := x.Shape(); len(s) > 0 {
		n = s[len(s)-1]
	}
	return &Var{data: empty(append(leading, n)...), needs: true}
}

// noIDs returns as many zeros as x has rows.
func noIDs(x *Var) *tensor.Tensor {
	n := int64(1)
	if s := x.Shape(); len(s) > 0 {
		n = s[0]
	}
	t, err := tensor.New(tensor.Int64, []int64{n})
	if err != nil {
		panic(err)
	}
	return t
}

func saveAll(string, int) bool { return true }

// ofOne are the operators of one rank, as functions of one variable.
var ofOne = map[string]func(g *Graph, x *Var) *Var{
	"add":            func(g *Graph, x *Var) *Var { return g.Add(x, x) },
	"mul":            func(g *Graph, x *Var) *Var { return g.Mul(x, x) },
	"scale":          func(g *Graph, x *Var) *Var { return g.Scale(x, 2) },
	"sum":            func(g *Graph, x *Var) *Var { return g.Sum(x) },
	"matmul":         func(g *Graph, x *Var) *Var { return g.MatMul(x, g.Transpose(x, 0, 1)) },
	"matmul square":  func(g *Graph, x *Var) *Var { return g.MatMul(x, x) },
	"linear":         func(g *Graph, x *Var) *Var { return g.Linear(x, withLast(x, 3), withLast(Leaf(empty(3)))) },
	"linear to none": func(g *Graph, x *Var) *Var { return g.Linear(x, withLast(x, 0), withLast(Leaf(empty(0)))) },
	"embedding":      func(g *Graph, x *Var) *Var { return g.Embedding(x, noIDs(x)) },
	"no ids":         func(g *Graph, x *Var) *Var { return g.Embedding(x, nil) },
	"gelu":           func(g *Graph, x *Var) *Var { return g.GELU(x) },
	"layernorm":      func(g *Graph, x *Var) *Var { return g.LayerNorm(x, withLast(x), withLast(x)) },
	"reshape":        func(g *Graph, x *Var) *Var { return g.Reshape(x, int64(product(x.Shape()))) },
	"reshape wrong":  func(g *Graph, x *Var) *Var { return g.Reshape(x, -1) },
	"reshape huge":   func(g *Graph, x *Var) *Var { return g.Reshape(x, 1<<62, 1<<62) },
	"transpose":      func(g *Graph, x *Var) *Var { return g.Transpose(x, 0, 1) },
	"narrow":         func(g *Graph, x *Var) *Var { return g.Narrow(x, 0, 0, 1) },
	"narrow none":    func(g *Graph, x *Var) *Var { return g.Narrow(x, 0, 0, 0) },
	"narrow wrong":   func(g *Graph, x *Var) *Var { return g.Narrow(x, -1, 2, 1) },
	"cat":            func(g *Graph, x *Var) *Var { return g.Cat(0, x, x) },
	"cat none":       func(g *Graph, x *Var) *Var { return g.Cat(0) },
	"split":          func(g *Graph, x *Var) *Var { return g.Split(x, 1, noIDs(x).Shape()[0]-1)[0] },
	"split none": func(g *Graph, x *Var) *Var {
		g.Split(x)
		return x
	},
	"cast":         func(g *Graph, x *Var) *Var { return g.Cast(x, tensor.BFloat16) },
	"softmax":      func(g *Graph, x *Var) *Var { return g.Softmax(x) },
	"attention":    func(g *Graph, x *Var) *Var { return g.CausalAttention(x, x, x, 2) },
	"crossentropy": func(g *Graph, x *Var) *Var { return g.CrossEntropy(x, noIDs(x)) },
	"no targets":   func(g *Graph, x *Var) *Var { return g.CrossEntropy(x, nil) },
	"checkpoint": func(g *Graph, x *Var) *Var {
		return g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.GELU(in[0]) }, nil, x)
	},
	"checkpoint without a result": func(g *Graph, x *Var) *Var {
		return g.Checkpoint(func(*Graph, ...*Var) *Var { return nil }, nil, x)
	},
	"checkpoint in a checkpoint": func(g *Graph, x *Var) *Var {
		return g.Checkpoint(func(g *Graph, in ...*Var) *Var {
			return g.GELU(g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.GELU(in[0]) }, saveAll, in[0]))
		}, saveAll, x)
	},
}

// Every operator, given any shape and any memory, computes or fails. The result does not
// depend on the dtype and the order of the elements in memory.
func TestOperatorsOnAllShapes(t *testing.T) {
	shapes := [][]int64{{}, {0}, {1}, {5}, {0, 0}, {0, 4}, {4, 0}, {3, 4}, {4, 4}, {2, 0, 4}, {0, 3, 4}, {2, 3, 0}, {2, 3, 4}, {2, 4, 4}, {1, 1, 1, 1}}
	for name, op := range ofOne {
		for _, s := range shapes {
			want, wantGrad, wantErr := outcome(t, op, sample(t, s))
			for form, x := range forms(t, sample(t, s)) {
				got, grad, err := outcome(t, op, x)
				if (err == nil) != (wantErr == nil) {
					t.Errorf("%s of %v, %s: error %v, and %v if contiguous float32", name, s, form, err, wantErr)
					continue
				}
				near := cmp.Comparer(func(a, b float32) bool { return a == b || max(a-b, b-a) < 1e-5 })
				if d := cmp.Diff(want, got, near); d != "" {
					t.Errorf("%s of %v, %s: result:\n%s", name, s, form, d)
				}
				if d := cmp.Diff(wantGrad, grad, near); d != "" {
					t.Errorf("%s of %v, %s: gradient:\n%s", name, s, form, d)
				}
			}
		}
		placeholder, err := tensor.Placeholder(tensor.Float32, []int64{4, 4})
		must.Do(t, err)
		for _, x := range []*Var{nil, {}, Leaf(nil), {data: placeholder, needs: true}} {
			g := New(t.Context())
			op(g, x)
			if g.Err() == nil && name != "cat none" {
				t.Errorf("%s of a variable without data is no error", name)
			}
		}
	}
	if err := New(t.Context()).Backward(nil, nil); !errors.Is(err, ErrGrad) {
		t.Errorf("backward from nothing: %v", err)
	}
}

// sample returns numbers that bfloat16 holds exactly.
func sample(t *testing.T, shape []int64) *tensor.Tensor {
	t.Helper()
	x := empty(shape...)
	for i := range floats(x) {
		floats(x)[i] = float32(i%7)/4 - 0.5
	}
	return x
}

// forms returns the same elements in other forms.
func forms(t *testing.T, x *tensor.Tensor) map[string]*tensor.Tensor {
	t.Helper()
	out := map[string]*tensor.Tensor{}
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		c, err := tensor.Cast(x, d)
		must.Do(t, err)
		out[d.String()] = c
	}
	if x.Dims() < 2 {
		return out
	}
	for name, y := range map[string]*tensor.Tensor{"strided float32": x, "strided bfloat16": out["bfloat16"]} {
		a, err := y.Transpose(0, 1)
		must.Do(t, err)
		if out[name], err = a.Clone().Transpose(0, 1); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// outcome returns the result of an operator, and the gradient of the sum of the squares of
// its elements.
func outcome(t *testing.T, op func(*Graph, *Var) *Var, x *tensor.Tensor) (out, grad []float32, err error) {
	t.Helper()
	v := Leaf(x)
	must.Do(t, v.RequireGrad(true))
	g := New(t.Context())
	y := op(g, v)
	if g.Err() != nil {
		return nil, nil, g.Err()
	}
	must.Do(t, g.Backward(g.Sum(g.Mul(y, y)), nil))
	if now, _ := g.KeptBytes(); now != 0 {
		t.Errorf("%d bytes are kept after the backward pass", now)
	}
	if v.Grad() == nil {
		return floats(y.Data()), nil, nil
	}
	return floats(y.Data()), floats(v.Grad()), nil
}

// Several backward passes through parts of a split each add their gradient.
func TestBackwardPassesThroughPartsOfASplit(t *testing.T) {
	x := leaf(t, []int64{3}, 1, 2, 3)
	x.SetGrad(sample(t, []int64{3}).Clone())
	before := append([]float32(nil), floats(x.Grad())...)
	g := New(t.Context())
	for i, part := range g.Split(x, 1, 2) {
		must.Do(t, g.Backward(g.Sum(g.Scale(part, float64(i+1))), nil))
	}
	if d := cmp.Diff([]float32{before[0] + 1, before[1] + 2, before[2] + 2}, floats(x.Grad())); d != "" {
		t.Error(d)
	}
	g = New(t.Context())
	parts := g.Split(g.GELU(x), 1, 2)
	must.Do(t, g.Backward(g.Sum(parts[0]), nil))
	if err := g.Backward(g.Sum(parts[1]), nil); !errors.Is(err, ErrUsed) {
		t.Errorf("the second backward pass through what comes before the split: %v", err)
	}
}

// A backward pass adds to the gradient that a caller has set, whatever its memory, or refuses it.
func TestGradientsAreAddedToThoseThatWereSet(t *testing.T) {
	x := leaf(t, []int64{2}, 1, 2)
	square := func() error {
		g := New(t.Context())
		return g.Backward(g.Sum(g.Mul(x, x)), nil)
	}
	every, err := tensor.Of([]int64{4}, []float32{10, 0, 20, 0})
	must.Do(t, err)
	second, err := every.Slice(0, 0, 4, 2)
	must.Do(t, err)
	x.SetGrad(second)
	must.Do(t, square())
	if d := cmp.Diff([]float32{12, 24}, floats(x.Grad())); d != "" {
		t.Error(d)
	}
	for _, wrong := range []*tensor.Tensor{empty(1), empty(3), noIDs(x)} {
		x.SetGrad(wrong)
		if err := square(); !errors.Is(err, ErrShape) {
			t.Errorf("a backward pass to a leaf with the gradient %v: %v", wrong, err)
		}
	}
}

// The points of a model are met once in the forward pass, however deep its checkpoints are.
func TestSyncInsideNestedCheckpoints(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var c Coordinator
		points := []Point{BeforeDispatch, AfterDispatch, BeforeCombine, AfterCombine}
		model := func(g *Graph, in ...*Var) *Var {
			x := in[0]
			for _, p := range points {
				x = g.Sync(&c, p, g.GELU(x))
			}
			return x
		}
		nested := func(g *Graph, in ...*Var) *Var { return g.Checkpoint(model, nil, in...) }
		build := func(g *Graph) *Var { return g.Sum(g.Checkpoint(nested, nil, leaf(t, []int64{2}))) }
		first, second := New(ctx), New(ctx)
		loss := build(first)
		err := c.Run(ctx, func() error {
			build(second)
			return second.Err()
		}, func() error { return first.Backward(loss, nil) })
		must.Do(t, err)
	})
}

// The memory of an operand may have other contents in the next graph, even if the last one
// was given up.
func TestSwapDoesNotMistakeGraphs(t *testing.T) {
	s, _ := newSwap(t, nil)
	input := page(1)
	w := &Var{data: page(3), needs: true}
	abandoned := New(t.Context()).Keep(s)
	kept := abandoned.Mul(w, Leaf(input))
	must.Do(t, s.stream.Synchronize(t.Context()))
	for i := range floats(input) {
		floats(input)[i] = 2
	}
	g := New(t.Context()).Keep(s)
	must.Do(t, g.Backward(g.Sum(g.Mul(w, Leaf(input))), nil))
	if got := floats(w.Grad())[0]; got != 2 {
		t.Errorf("the gradient is %v; want 2", got)
	}
	if kept.Data() == nil {
		t.Error(fmt.Errorf("the first graph: %w", abandoned.Err()))
	}
}
