package autograd

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// operators is every operator as a function of variables of random shapes, for the
// comparison with finite differences.
var operators = []struct {
	name string
	// draw returns the shapes of the operands and the operator over them.
	draw func(t *rapid.T) (shapes [][]int64, f Func)
}{
	{"add", func(t *rapid.T) ([][]int64, Func) {
		s := drawShape(t, 1, 3)
		return [][]int64{s, s[rapid.IntRange(0, len(s)).Draw(t, "skip"):]},
			func(g *Graph, in ...*Var) *Var { return g.Add(in[0], in[1]) }
	}},
	{"add itself", func(t *rapid.T) ([][]int64, Func) {
		return [][]int64{drawShape(t, 1, 2)}, func(g *Graph, in ...*Var) *Var { return g.Add(in[0], in[0]) }
	}},
	{"mul", func(t *rapid.T) ([][]int64, Func) {
		s := drawShape(t, 1, 3)
		return [][]int64{s, s[rapid.IntRange(0, len(s)).Draw(t, "skip"):]},
			func(g *Graph, in ...*Var) *Var { return g.Mul(in[0], in[1]) }
	}},
	{"scale", func(t *rapid.T) ([][]int64, Func) {
		return [][]int64{drawShape(t, 0, 3)}, func(g *Graph, in ...*Var) *Var { return g.Scale(in[0], -1.5) }
	}},
	{"sum", func(t *rapid.T) ([][]int64, Func) {
		return [][]int64{drawShape(t, 0, 3)}, func(g *Graph, in ...*Var) *Var { return g.Sum(in[0]) }
	}},
	{"matmul", func(t *rapid.T) ([][]int64, Func) {
		lead, m, k, n := drawShape(t, 0, 2), size(t), size(t), size(t)
		return [][]int64{append(slices.Clone(lead), m, k), append(slices.Clone(lead), k, n)},
			func(g *Graph, in ...*Var) *Var { return g.MatMul(in[0], in[1]) }
	}},
	{"linear", func(t *rapid.T) ([][]int64, Func) {
		lead, k, n := drawShape(t, 0, 2), size(t), size(t)
		return [][]int64{append(lead, k), {n, k}, {n}},
			func(g *Graph, in ...*Var) *Var { return g.Linear(in[0], in[1], in[2]) }
	}},
	{"linear without bias", func(t *rapid.T) ([][]int64, Func) {
		k, n := size(t), size(t)
		return [][]int64{{size(t), k}, {n, k}}, func(g *Graph, in ...*Var) *Var { return g.Linear(in[0], in[1], nil) }
	}},
	{"embedding", func(t *rapid.T) ([][]int64, Func) {
		rows := size(t)
		ids := drawIDs(t, drawShape(t, 1, 2), rows)
		return [][]int64{{rows, size(t)}}, func(g *Graph, in ...*Var) *Var { return g.Embedding(in[0], ids) }
	}},
	{"gelu", func(t *rapid.T) ([][]int64, Func) {
		return [][]int64{drawShape(t, 0, 3)}, func(g *Graph, in ...*Var) *Var { return g.GELU(in[0]) }
	}},
	{"dropout", func(t *rapid.T) ([][]int64, Func) {
		p := rapid.SampledFrom([]float32{0, 0.25, 0.9, 1}).Draw(t, "p")
		return [][]int64{drawShape(t, 0, 3)}, func(g *Graph, in ...*Var) *Var {
			g.Seed(1, 2)
			return g.Dropout(in[0], p)
		}
	}},
	{"layernorm", func(t *rapid.T) ([][]int64, Func) {
		n := rapid.Int64Range(2, 6).Draw(t, "n")
		// A row of nearly equal elements bends too much for finite differences.
		ramp := empty(n)
		for i := range floats(ramp) {
			floats(ramp)[i] = float32(8 * i)
		}
		return [][]int64{append(drawShape(t, 0, 2), n), {n}, {n}},
			func(g *Graph, in ...*Var) *Var {
				steps, err := tensor.Cast(ramp, in[0].dtype())
				must.Do(t, err)
				return g.LayerNorm(g.Add(in[0], Leaf(steps)), in[1], in[2])
			}
	}},
	{"softmax", func(t *rapid.T) ([][]int64, Func) {
		return [][]int64{drawShape(t, 1, 3)}, func(g *Graph, in ...*Var) *Var { return g.Softmax(in[0]) }
	}},
	{"attention", func(t *rapid.T) ([][]int64, Func) {
		heads := size(t)
		s := []int64{size(t), size(t), heads * size(t)}
		return [][]int64{s, s, s},
			func(g *Graph, in ...*Var) *Var { return g.CausalAttention(in[0], in[1], in[2], int(heads)) }
	}},
	{"crossentropy", func(t *rapid.T) ([][]int64, Func) {
		rows, classes := size(t), size(t)
		ids := drawIDs(t, []int64{rows}, classes)
		return [][]int64{{rows, classes}}, func(g *Graph, in ...*Var) *Var { return g.CrossEntropy(in[0], ids) }
	}},
	{"reshape", func(t *rapid.T) ([][]int64, Func) {
		a, b := size(t), size(t)
		return [][]int64{{a, b}}, func(g *Graph, in ...*Var) *Var { return g.Reshape(in[0], b, 1, a) }
	}},
	{"transpose", func(t *rapid.T) ([][]int64, Func) {
		s := drawShape(t, 2, 3)
		return [][]int64{s}, func(g *Graph, in ...*Var) *Var { return g.Transpose(in[0], 0, len(s)-1) }
	}},
	{"narrow", func(t *rapid.T) ([][]int64, Func) {
		s := drawShape(t, 1, 3)
		dim := rapid.IntRange(0, len(s)-1).Draw(t, "dim")
		lo := rapid.Int64Range(0, s[dim]).Draw(t, "lo")
		hi := rapid.Int64Range(lo, s[dim]).Draw(t, "hi")
		return [][]int64{s}, func(g *Graph, in ...*Var) *Var { return g.Narrow(in[0], dim, lo, hi) }
	}},
	{"cat", func(t *rapid.T) ([][]int64, Func) {
		s := drawShape(t, 1, 3)
		dim := rapid.IntRange(0, len(s)-1).Draw(t, "dim")
		other := slices.Clone(s)
		other[dim] = size(t)
		return [][]int64{s, other}, func(g *Graph, in ...*Var) *Var { return g.Cat(dim, in...) }
	}},
	{"split", func(t *rapid.T) ([][]int64, Func) {
		a, b, n := size(t), size(t), size(t)
		return [][]int64{{a + b + a, n}}, func(g *Graph, in ...*Var) *Var {
			parts := g.Split(in[0], a, b, a)
			return g.Mul(parts[0], parts[2]) // the second part is not used
		}
	}},
	{"cast", func(t *rapid.T) ([][]int64, Func) {
		return [][]int64{drawShape(t, 0, 3)}, func(g *Graph, in ...*Var) *Var { return g.Cast(in[0], in[0].dtype()) }
	}},
	{"checkpoint", func(t *rapid.T) ([][]int64, Func) {
		n := size(t)
		policy := SaveOps(rapid.SampledFrom([][]string{nil, {"linear"}, {"gelu", "linear"}, {"mul"}}).Draw(t, "saved")...)
		return [][]int64{{size(t), n}, {n, n}}, func(g *Graph, in ...*Var) *Var {
			return g.Checkpoint(func(g *Graph, x ...*Var) *Var {
				return g.Mul(g.GELU(g.Linear(x[0], x[1], nil)), x[0])
			}, policy, in...)
		}
	}},
	{"dropout in nested checkpoints", func(t *rapid.T) ([][]int64, Func) {
		n := size(t)
		policy := SaveOps(rapid.SampledFrom([][]string{nil, {"dropout"}, {"scale"}, {"dropout", "mul"}}).Draw(t, "saved")...)
		first := func(_ string, n int) bool { return n == 0 }
		return [][]int64{{size(t), n}}, func(g *Graph, in ...*Var) *Var {
			g.Seed(3, 4)
			inner := func(g *Graph, x ...*Var) *Var { return g.Dropout(g.Scale(g.Dropout(x[0], 0.5), 2), 0.5) }
			y := g.Checkpoint(func(g *Graph, x ...*Var) *Var {
				y := g.Dropout(x[0], 0.25)
				return g.Dropout(g.Mul(y, g.Checkpoint(inner, first, y)), 0.25)
			}, policy, g.Dropout(in[0], 0.1))
			return g.Dropout(y, 0.1)
		}
	}},
}

func size(t *rapid.T) int64 { return rapid.Int64Range(1, 4).Draw(t, "size") }

func drawShape(t *rapid.T, least, most int) []int64 {
	return rapid.SliceOfN(rapid.Int64Range(1, 4), least, most).Draw(t, "shape")
}

func drawIDs(t *rapid.T, shape []int64, below int64) *tensor.Tensor {
	n := product(shape)
	out, err := tensor.Of(shape, rapid.SliceOfN(rapid.Int64Range(0, below-1), n, n).Draw(t, "ids"))
	must.Do(t, err)
	return out
}

func drawValues(t *rapid.T, shape []int64) *tensor.Tensor {
	n := product(shape)
	// A grid of values keeps the output of rapid short.
	ints := rapid.SliceOfN(rapid.IntRange(-64, 64), n, n).Draw(t, "values")
	out := empty(shape...)
	for i, v := range ints {
		floats(out)[i] = float32(v) / 32
	}
	return out
}

func TestGradientsEqualFiniteDifferences(t *testing.T) {
	for _, o := range operators {
		t.Run(o.name, func(t *testing.T) {
			deep.Check(t, func(t *rapid.T) {
				f, in := drawOperands(t, o.draw, tensor.Float32)
				checkGradients[float32](t, f, in, 1.0/64, 5e-3)
			})
		})
	}
}

// The step and the tolerance are too small for float32.
func TestFloat64GradientsEqualFiniteDifferences(t *testing.T) {
	for _, o := range operators {
		t.Run(o.name, func(t *testing.T) {
			deep.Check(t, func(t *rapid.T) {
				f, in := drawOperands(t, o.draw, tensor.Float64)
				checkGradients[float64](t, f, in, 1.0/(1<<17), 1e-7)
			})
		})
	}
}

func drawOperands(t *rapid.T, draw func(*rapid.T) ([][]int64, Func), d tensor.DType) (f Func, in []*tensor.Tensor) {
	shapes, f := draw(t)
	for _, s := range shapes {
		x, err := tensor.Cast(drawValues(t, s), d)
		must.Do(t, err)
		in = append(in, x)
	}
	return f, in
}

// checkGradients compares the gradients of a random linear function of f's result with
// finite differences of the step h.
func checkGradients[F float](t *rapid.T, f Func, in []*tensor.Tensor, h F, tolerance float64) {
	g := New(t.Context())
	vars := make([]*Var, len(in))
	for i, x := range in {
		vars[i] = Leaf(x)
		must.Do(t, vars[i].RequireGrad(true))
	}
	out := f(g, vars...)
	must.Do(t, g.Err())
	weights, err := tensor.Cast(drawValues(t, out.Shape()), tensor.DTypeOf[F]())
	must.Do(t, err)
	must.Do(t, g.Backward(out, weights))
	if now, _ := g.KeptBytes(); now != 0 {
		t.Errorf("%d bytes are kept after the backward pass", now)
	}
	value := func() float64 {
		g := New(t.Context()).NoGrad()
		sum := 0.0
		for i, v := range values[F](f(g, vars...).Data()) {
			sum += float64(v) * float64(values[F](weights)[i])
		}
		return sum
	}
	for i, x := range in {
		data := values[F](x)
		for j := range data {
			was := data[j]
			data[j] = was + h
			up := value()
			data[j] = was - h
			down := value()
			data[j] = was
			want, got := (up-down)/float64(2*h), 0.0
			if d := vars[i].Grad(); d != nil {
				got = float64(must.Get(tensor.Values[F](d))(t)[j])
			}
			if math.Abs(want-got) > tolerance*(1+math.Abs(want)) {
				t.Fatalf("gradient of element %d of operand %d is %g; finite differences give %g", j, i, got, want)
			}
		}
	}
}
