package autograd

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

func leaf(t *testing.T, shape []int64, values ...float32) *Var {
	t.Helper()
	if values == nil {
		rng := rand.New(rand.NewPCG(1, uint64(len(shape))))
		for range product(shape) {
			values = append(values, float32(rng.NormFloat64()))
		}
	}
	x, err := tensor.Of(shape, values)
	must.Do(t, err)
	v := Leaf(x)
	must.Do(t, v.RequireGrad(true))
	return v
}

func TestGradientsOfALeafAddUp(t *testing.T) {
	x := leaf(t, []int64{2}, 1, 2)
	for range 2 {
		g := New(t.Context())
		must.Do(t, g.Backward(g.Sum(g.Mul(x, x)), nil))
	}
	if d := cmp.Diff([]float32{4, 8}, floats(x.Grad())); d != "" {
		t.Error(d)
	}
	x.SetGrad(nil)
	if x.Grad() != nil {
		t.Error("the gradient is still there")
	}
}

func TestNoGradRecordsNothing(t *testing.T) {
	x := leaf(t, []int64{2})
	g := New(t.Context())
	y := g.NoGrad().GELU(x)
	if y.RequiresGrad() {
		t.Error("the result requires a gradient")
	}
	if now, peak := g.KeptBytes(); now != 0 || peak != 0 {
		t.Errorf("kept %d bytes, %d at most", now, peak)
	}
	if err := g.Backward(g.Sum(y), nil); !errors.Is(err, ErrGrad) {
		t.Errorf("backward: %v", err)
	}
}

func TestRequireGradIsForLeavesOfFloats(t *testing.T) {
	x := leaf(t, []int64{2})
	y := New(t.Context()).Scale(x, 2)
	if err := y.RequireGrad(true); !errors.Is(err, ErrGrad) {
		t.Errorf("of a result: %v", err)
	}
	if err := y.SetData(x.Data()); !errors.Is(err, ErrGrad) {
		t.Errorf("data of a result: %v", err)
	}
	ids, err := tensor.Of([]int64{1}, []int64{1})
	must.Do(t, err)
	if err := Leaf(ids).RequireGrad(true); !errors.Is(err, ErrGrad) {
		t.Errorf("of integers: %v", err)
	}
	if err := x.RequireGrad(false); err != nil || x.RequiresGrad() {
		t.Errorf("no longer: %v", err)
	}
}

// A wrong shape makes the graph fail; later operators are skipped, and the error stays the
// first one.
func TestFirstErrorStays(t *testing.T) {
	a, b := leaf(t, []int64{2, 3}), leaf(t, []int64{2, 3})
	ids, err := tensor.Of([]int64{1}, []int64{7})
	must.Do(t, err)
	for name, f := range map[string]func(g *Graph) *Var{
		"add":          func(g *Graph) *Var { return g.Add(a, leaf(t, []int64{2})) },
		"mul":          func(g *Graph) *Var { return g.Mul(leaf(t, []int64{3}), a) },
		"matmul":       func(g *Graph) *Var { return g.MatMul(a, b) },
		"linear":       func(g *Graph) *Var { return g.Linear(a, leaf(t, []int64{2, 2}), nil) },
		"layernorm":    func(g *Graph) *Var { return g.LayerNorm(a, b, b) },
		"embedding":    func(g *Graph) *Var { return g.Embedding(a, ids) },
		"softmax":      func(g *Graph) *Var { return g.Softmax(leaf(t, nil)) },
		"attention":    func(g *Graph) *Var { return g.CausalAttention(a, a, a, 1) },
		"crossentropy": func(g *Graph) *Var { return g.CrossEntropy(leaf(t, []int64{1, 2}), ids) },
		"reshape":      func(g *Graph) *Var { return g.Reshape(a, 5) },
	} {
		t.Run(name, func(t *testing.T) {
			g := New(t.Context())
			out := g.GELU(g.Add(f(g), a))
			if out.Data() != nil || !errors.Is(g.Err(), ErrShape) {
				t.Errorf("%v, error %v", out.Data(), g.Err())
			}
			if err := g.Backward(g.Sum(out), nil); err != g.Err() {
				t.Errorf("backward: %v", err)
			}
		})
	}
}

func TestSecondWayBackIsRefused(t *testing.T) {
	x := leaf(t, []int64{2})
	g := New(t.Context())
	y := g.Sum(g.Mul(x, x))
	must.Do(t, g.Backward(y, nil))
	if err := g.Backward(y, nil); !errors.Is(err, ErrUsed) {
		t.Error(err)
	}
}

func TestBackwardNeedsASeedForManyElements(t *testing.T) {
	g := New(t.Context())
	if err := g.Backward(g.GELU(leaf(t, []int64{2})), nil); !errors.Is(err, ErrGrad) {
		t.Error(err)
	}
}

func TestBackwardEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g := New(ctx)
	y := g.Sum(leaf(t, []int64{2}))
	cancel()
	if err := g.Backward(y, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Attention is the same as its parts: products, a mask and a softmax.
func TestAttentionEqualsItsParts(t *testing.T) {
	const batch, time, heads, size = 2, 5, 3, 4
	s := []int64{batch, time, heads * size}
	q, k, v := leaf(t, s), leaf(t, s), leaf(t, s)
	for i := range floats(k.Data()) {
		floats(k.Data())[i] *= -0.5
	}
	mask := empty(time, time)
	for i := range time {
		for j := i + 1; j < time; j++ {
			floats(mask)[i*time+j] = -1e9
		}
	}
	g := New(t.Context()).NoGrad()
	split := func(x *Var) *Var { return g.Transpose(g.Reshape(x, batch, time, heads, size), 1, 2) }
	scores := g.Add(g.Scale(g.MatMul(split(q), g.Transpose(split(k), 2, 3)), 0.5), Leaf(mask))
	want := g.Reshape(g.Transpose(g.MatMul(g.Softmax(scores), split(v)), 1, 2), s...)
	got := g.CausalAttention(q, k, v, heads)
	if g.Err() != nil {
		t.Fatal(g.Err())
	}
	near(t, got.Data(), want.Data(), 1e-6)
}

func near(t *testing.T, got, want *tensor.Tensor, by float32) {
	t.Helper()
	if !slices.Equal(got.Shape(), want.Shape()) {
		t.Fatalf("%v, want %v", got, want)
	}
	a, b := floats(got), floats(want)
	for i := range a {
		if d := a[i] - b[i]; d > by || d < -by || d != d {
			t.Fatalf("element %d is %g, want %g", i, a[i], b[i])
		}
	}
}

// The same step gives the same bits on one processor and on many.
func TestResultsDoNotDependOnProcessors(t *testing.T) {
	step := func() []*tensor.Tensor {
		x, w, b := leaf(t, []int64{300, 200}), leaf(t, []int64{200, 200}), leaf(t, []int64{200})
		g := New(t.Context())
		y := g.LayerNorm(g.GELU(g.Linear(x, w, b)), b, b)
		must.Do(t, g.Backward(g.Sum(g.Mul(y, y)), nil))
		return []*tensor.Tensor{y.Data(), x.Grad(), w.Grad(), b.Grad()}
	}
	many := step()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for i, one := range step() {
		if !tensor.Equal(one, many[i]) {
			t.Errorf("tensor %d differs", i)
		}
	}
}

// Leaves may hold small floats: the result is computed from their values in float32.
func TestSmallFloatsAreStorage(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		x, w := leaf(t, []int64{4, 3}), leaf(t, []int64{2, 3})
		small, err := tensor.Cast(w.Data(), d)
		must.Do(t, err)
		rounded, err := tensor.Cast(small, tensor.Float32)
		must.Do(t, err)
		var grads [2]*tensor.Tensor
		for i, data := range []*tensor.Tensor{small, rounded} {
			v := Leaf(data)
			must.Do(t, v.RequireGrad(true))
			g := New(t.Context())
			must.Do(t, g.Backward(g.Sum(g.GELU(g.Linear(x, v, nil))), nil))
			grads[i] = v.Grad()
		}
		if grads[0].DType() != tensor.Float32 || !tensor.Equal(grads[0], grads[1]) {
			t.Errorf("%v: gradients %v and %v differ", d, grads[0], grads[1])
		}
	}
}

// After calls its function when all operators after the mark are passed.
func TestAfterWaitsForLaterOperators(t *testing.T) {
	x := leaf(t, []int64{2})
	g := New(t.Context())
	var order []string
	note := func(name string, in *Var) *Var {
		return g.Apply(Op{Name: name, In: []*Var{in}, Aliases: true,
			Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) { return in.Data(), nil, nil },
			Backward: func(p *Pass) ([]*tensor.Tensor, error) {
				order = append(order, name)
				return []*tensor.Tensor{p.Grad}, nil
			},
		})
	}
	first := note("first", x)
	mark := g.Mark()
	left, right := note("left", first), note("right", first)
	join := g.Add(left, right)
	entry := first.Result()
	last := g.Apply(Op{Name: "last", In: []*Var{join}, Aliases: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) { return join.Data(), nil, nil },
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			p.After(mark, func() error {
				order = append(order, "after")
				double := p.PendingGrad(entry).Clone()
				for i := range floats(double) {
					floats(double)[i] *= 10
				}
				return p.ReplaceGrad(entry, double)
			})
			return []*tensor.Tensor{p.Grad}, nil
		},
	})
	must.Do(t, g.Backward(g.Sum(last), nil))
	if d := cmp.Diff([]string{"right", "left", "after", "first"}, order); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]float32{20, 20}, floats(x.Grad())); d != "" {
		t.Error(d)
	}
}

// A result from outside that is not an operand would be passed twice in the backward pass.
func TestCheckpointRefusesResultsThatAreNotOperands(t *testing.T) {
	x := leaf(t, []int64{2})
	g := New(t.Context())
	outside := g.GELU(x)
	y := g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.Mul(in[0], outside) }, nil, x)
	if err := g.Backward(g.Sum(y), nil); !errors.Is(err, ErrGrad) {
		t.Error(err)
	}
}

// Operands without elements have results and gradients, and do not end the process.
func TestOperandsMayBeEmpty(t *testing.T) {
	var none []int64
	empty := func(shape ...int64) *Var { return leaf(t, shape) }
	for name, f := range map[string]func(g *Graph, x *Var) *Var{
		"product over an empty dimension": func(g *Graph, x *Var) *Var { return g.MatMul(x, empty(0, 4)) },
		"linear over an empty dimension":  func(g *Graph, x *Var) *Var { return g.Linear(x, empty(4, 0), nil) },
		"linear to an empty dimension":    func(g *Graph, x *Var) *Var { return g.Linear(empty(3, 2), g.Reshape(x, 0, 2), nil) },
		"layer norm":                      func(g *Graph, x *Var) *Var { return g.LayerNorm(x, empty(0), empty(0)) },
		"softmax":                         func(g *Graph, x *Var) *Var { return g.Softmax(x) },
		"attention of no time":            func(g *Graph, x *Var) *Var { x = g.Reshape(x, 2, 0, 4); return g.CausalAttention(x, x, x, 2) },
		"attention of no width":           func(g *Graph, x *Var) *Var { x = g.Reshape(x, 2, 3, 0); return g.CausalAttention(x, x, x, 2) },
		"attention of no sequence":        func(g *Graph, x *Var) *Var { x = g.Reshape(x, 0, 3, 4); return g.CausalAttention(x, x, x, 2) },
		"embedding": func(g *Graph, x *Var) *Var {
			ids, err := tensor.Of([]int64{0}, none)
			must.Do(t, err)
			return g.Embedding(x, ids)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := empty(3, 0)
			g := New(t.Context())
			sum := g.Sum(f(g, x))
			must.Do(t, g.Backward(sum, nil))
			if v, err := sum.Item(); v != 0 || err != nil {
				t.Errorf("the sum is %v, %v; want 0", v, err)
			}
			if d := cmp.Diff([]int64{3, 0}, x.Grad().Shape()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestPlaceholdersAreNotComputedWith(t *testing.T) {
	p, err := tensor.Placeholder(tensor.Float32, []int64{2})
	must.Do(t, err)
	g := New(t.Context())
	sum := g.Sum(g.Add(leaf(t, []int64{2}), Leaf(p)))
	if !errors.Is(g.Err(), tensor.ErrPlaceholder) {
		t.Errorf("the error of the graph is %v", g.Err())
	}
	if _, err := sum.Item(); !errors.Is(err, ErrShape) {
		t.Errorf("the sum without data: %v", err)
	}
}

// Operands of a sum share the gradient of the sum. An addition to the gradient of one of them
// does not change the other.
func TestSharedGradientsAreAddedApart(t *testing.T) {
	x, y := leaf(t, []int64{2}, 1, 2), leaf(t, []int64{2}, 3, 4)
	g := New(t.Context())
	a, b := g.Scale(x, 1), g.Scale(y, 1)
	again := g.Scale(a, 5)
	must.Do(t, g.Backward(g.Sum(g.Add(g.Add(a, b), again)), nil))
	if d := cmp.Diff([][]float32{{6, 6}, {1, 1}}, [][]float32{floats(x.grad), floats(y.grad)}); d != "" {
		t.Errorf("the gradients (-want +got):\n%s", d)
	}
}
