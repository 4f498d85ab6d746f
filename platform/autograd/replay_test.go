package autograd

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// noise multiplies by random numbers that next returns, through Apply.
func noise(g *Graph, x *Var, next func() float32) *Var {
	return g.Apply(Op{
		Name: "noise", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			by, out := like(x.data), like(x.data)
			for i := range floats(by) {
				floats(by)[i] = next()
				floats(out)[i] = floats(x.data)[i] * floats(by)[i]
			}
			return out, []*tensor.Tensor{by}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			d := like(p.Grad)
			for i := range floats(d) {
				floats(d)[i] = floats(p.Grad)[i] * floats(p.Saved[0])[i]
			}
			return []*tensor.Tensor{d}, nil
		},
	})
}

// A function that does anything else when it runs again fails the backward pass.
func TestSecondRunMustEqualTheFirst(t *testing.T) {
	run := 0 // of the function
	again := func() bool { return run > 1 }
	private := rand.New(rand.NewPCG(1, 2))
	w := leaf(t, []int64{2, 2}, 1, 2, 3, 4)
	id := func(g *Graph, x *Var) *Var { return g.Scale(x, 1) }
	cast := func(g *Graph, x *Var, d tensor.DType) *Var { return g.Scale(g.Cast(x, d), 1) }
	for name, c := range map[string]struct {
		f      func(g *Graph, x *Var) *Var
		policy Policy
		says   string
	}{
		"one operator less": {func(g *Graph, x *Var) *Var {
			if again() {
				return g.GELU(x)
			}
			return id(g, g.GELU(x))
		}, nil, "1 operators, and 2 before, the next of which was scale(float32[2 2])"},
		"one operator more": {func(g *Graph, x *Var) *Var {
			if again() {
				return id(g, g.GELU(x))
			}
			return g.GELU(x)
		}, nil, "scale(float32[2 2]) after the 1 operators of the first run"},
		"another operator": {func(g *Graph, x *Var) *Var {
			if again() {
				return g.Softmax(x)
			}
			return g.GELU(x)
		}, nil, "operator 1 is softmax(float32[2 2]), and was gelu(float32[2 2])"},
		"another operator among the operators that are kept": {func(g *Graph, x *Var) *Var {
			if again() {
				return g.Softmax(x)
			}
			return g.GELU(x)
		}, saveAll, "operator 1 is softmax(float32[2 2]), and was gelu(float32[2 2])"},
		"a kept operator more": {func(g *Graph, x *Var) *Var {
			if again() {
				return id(g, g.GELU(x))
			}
			return g.GELU(x)
		}, saveAll, "after the 1 operators"},
		"operands of another shape": {func(g *Graph, x *Var) *Var {
			if again() {
				x = g.Reshape(x, 4, 1)
			} else {
				x = g.Reshape(x, 1, 4)
			}
			return g.Reshape(g.GELU(x), 4)
		}, nil, "operator 1, reshape(float32[2 2]), returns float32[4 1], and returned float32[1 4]"},
		"an operand of another shape": {func(g *Graph, x *Var) *Var {
			if again() {
				return g.Add(x, leaf(t, []int64{2}, 0, 0))
			}
			return g.Add(x, leaf(t, []int64{2, 2}, 0, 0, 0, 0))
		}, nil, "operator 1 is add(float32[2 2], float32[2]), and was add(float32[2 2], float32[2 2])"},
		"one operand more": {func(g *Graph, x *Var) *Var {
			if again() {
				return g.Linear(x, w, leaf(t, []int64{2}, 0, 0))
			}
			return g.Linear(x, w, nil)
		}, nil, "operator 1 is linear"},
		"results of another dtype": {func(g *Graph, x *Var) *Var {
			if again() {
				return cast(g, x, tensor.Float16)
			}
			return cast(g, x, tensor.BFloat16)
		}, nil, "returns float16[2 2], and returned bfloat16[2 2]"},
		"a constant that counts": {func(g *Graph, x *Var) *Var { return g.GELU(g.Scale(x, float64(run))) }, nil, "operator 1, scale(float32[2 2]), returns other values"},
		"exchanged operands": {func(g *Graph, x *Var) *Var {
			if again() {
				return g.MatMul(w, x)
			}
			return g.MatMul(x, w)
		}, nil, "returns other values"},
		"random numbers of its own": {func(g *Graph, x *Var) *Var { return noise(g, x, private.Float32) }, nil, "operator 1, noise(float32[2 2]), returns other values"},
		// The result of the last operator is kept, and with it the result of the function.
		"random numbers of its own before the kept results": {func(g *Graph, x *Var) *Var {
			return g.Linear(noise(g, x, private.Float32), w, nil)
		}, SaveOps("linear"), "operator 1, noise(float32[2 2]), returns other values"},
		// The result is 0 in both runs, and the gradient is not.
		"other values that no result shows": {func(g *Graph, x *Var) *Var {
			return g.Mul(g.Scale(x, 0), noise(g, w, private.Float32))
		}, nil, "noise(float32[2 2]), returns other values"},
		"more random numbers outside of an operator": {func(g *Graph, x *Var) *Var {
			if again() {
				g.Rand().Uint64()
			}
			return g.GELU(x)
		}, nil, "another number of random numbers"},
		"another operator in an inner checkpoint": {func(g *Graph, x *Var) *Var {
			return g.Checkpoint(func(g *Graph, in ...*Var) *Var {
				if again() {
					return g.Softmax(in[0])
				}
				return g.GELU(in[0])
			}, nil, g.Scale(x, 2))
		}, nil, "operator 2 is softmax(float32[2 2]), and was gelu(float32[2 2])"},
		"random numbers of its own in an inner checkpoint": {func(g *Graph, x *Var) *Var {
			return g.Checkpoint(func(g *Graph, in ...*Var) *Var { return noise(g, in[0], private.Float32) }, saveAll, g.Scale(x, 2))
		}, nil, "operator 2, noise(float32[2 2]), returns other values"},
	} {
		t.Run(name, func(t *testing.T) {
			run = 0
			g := New(t.Context())
			g.Seed(1, 1)
			x := leaf(t, []int64{2, 2}, 1, 2, 3, 5)
			f := func(g *Graph, in ...*Var) *Var {
				run++
				return c.f(g, in[0])
			}
			err := g.Backward(g.Sum(g.Checkpoint(f, c.policy, x)), nil)
			if !errors.Is(err, ErrReplay) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the backward pass = %v; want ErrReplay with %q", err, c.says)
			}
		})
	}
}

// An operator that fails when it runs again fails the backward pass.
func TestOperatorFailsInTheSecondRun(t *testing.T) {
	failed := errors.New("failed")
	runs := 0
	g, x := New(t.Context()), leaf(t, []int64{2}, 1, 2)
	y := g.Checkpoint(func(g *Graph, in ...*Var) *Var {
		runs++
		return g.Apply(Op{Name: "test", In: in, Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if runs > 1 {
				return nil, nil, failed
			}
			return in[0].data.Clone(), nil, nil
		}})
	}, nil, x)
	if err := g.Backward(g.Sum(y), nil); !errors.Is(err, failed) {
		t.Errorf("the backward pass = %v; want the error of the operator", err)
	}
}

// A parameter that changes between the two runs is found by the results that change with
// it, also in large tensors.
func TestSecondRunFindsChangedTensors(t *testing.T) {
	for _, n := range []int64{3, 1 << 17} { // of some pieces of a checksum
		for _, at := range []int64{0, n - 1} {
			w, x := leaf(t, []int64{n}), leaf(t, []int64{n})
			for i := range n {
				floats(w.data)[i], floats(x.data)[i] = 1, 1
			}
			g := New(t.Context())
			loss := g.Sum(g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.Mul(in[0], w) }, nil, x))
			floats(w.data)[at] = 2
			if err := g.Backward(loss, nil); !errors.Is(err, ErrReplay) {
				t.Errorf("element %d of %d has changed: %v; want ErrReplay", at, n, err)
			}
		}
	}
}

// Gradients are those without a checkpoint: the policy counts, or decides by the
// occurrence, and is asked for each operator once.
func TestPolicyIsAskedOnceForEachOperator(t *testing.T) {
	f := func(g *Graph, in ...*Var) *Var {
		y := g.Mul(in[0], g.Scale(in[0], 2))
		return g.Mul(g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.Mul(in[0], in[0]) }, nil, y), g.Scale(y, 3))
	}
	grad := func(run func(g *Graph, x *Var) *Var) *tensor.Tensor {
		g, x := New(t.Context()), leaf(t, []int64{3}, 1, -2, 3)
		must.Do(t, g.Backward(g.Sum(run(g, x)), nil))
		return x.Grad()
	}
	want := grad(func(g *Graph, x *Var) *Var { return f(g, x) })
	var asked []string
	calls := 0
	for name, p := range map[string]Policy{
		"counts":                  func(string, int) bool { calls++; return calls%2 == 0 },
		"looks at the occurrence": func(op string, n int) bool { return op == "mul" && n == 1 },
		"keeps no results": func(op string, n int) bool {
			asked = append(asked, op+" "+string(rune('0'+n)))
			return false
		},
	} {
		if got := grad(func(g *Graph, x *Var) *Var { return g.Checkpoint(f, p, x) }); !tensor.Equal(got, want) {
			t.Errorf("a policy that %s: the gradient is %v, want %v", name, floats(got), floats(want))
		}
	}
	if calls != 4 || strings.Join(asked, ", ") != "scale 0, mul 0, scale 1, mul 1" {
		t.Errorf("%d calls, and asked for %v; want scale and mul twice", calls, asked)
	}
}

// A checkpointed function draws the same random numbers again, whatever was drawn since
// and whatever of its results is kept.
func TestRandomNumbersAreReplayed(t *testing.T) {
	f := func(g *Graph, in ...*Var) *Var {
		by := g.Rand().Float32()
		y := noise(g, g.Scale(in[0], float64(by)), g.Rand().Float32)
		return g.Dropout(noise(g, y, g.Rand().Float32), 0.5)
	}
	run := func(checkpoint func(g *Graph, x *Var) *Var) (*tensor.Tensor, uint64) {
		g, x := New(t.Context()), leaf(t, []int64{8}, 1, 2, 3, 4, 5, 6, 7, 8)
		g.Seed(5, 6)
		y := checkpoint(g, g.Dropout(x, 0.1))
		y = checkpoint(g, g.Dropout(y, 0.1))
		must.Do(t, g.Backward(g.Sum(y), nil))
		return x.Grad(), g.Rand().Uint64()
	}
	want, next := run(func(g *Graph, x *Var) *Var { return f(g, x) })
	for name, p := range map[string]Policy{
		"nothing": nil, "all": saveAll, "noise": SaveOps("noise"),
		"the second noise": func(op string, n int) bool { return op == "noise" && n == 1 },
		"dropout":          SaveOps("dropout"),
	} {
		got, after := run(func(g *Graph, x *Var) *Var { return g.Checkpoint(f, p, x) })
		if !tensor.Equal(got, want) {
			t.Errorf("keeping %s: the gradient is %v, want %v", name, floats(got), floats(want))
		}
		if after != next {
			t.Errorf("keeping %s: the next random number is another one than without checkpoints", name)
		}
	}
}

func TestDropoutHasASeed(t *testing.T) {
	x := leaf(t, []int64{64})
	for i := range floats(x.data) {
		floats(x.data)[i] = 1
	}
	masks := map[string]bool{}
	for _, seed := range [][2]uint64{{1, 1}, {1, 2}, {2, 1}, {1, 1}} {
		g := New(t.Context())
		g.Seed(seed[0], seed[1])
		var mask strings.Builder
		for _, v := range floats(g.NoGrad().Dropout(x, 0.5).data) {
			fmt.Fprint(&mask, v)
		}
		if n := strings.Count(mask.String(), "2"); n < 16 || n > 48 || n+strings.Count(mask.String(), "0") != 64 {
			t.Errorf("seed %v: the elements are %s; want 2 and 0, about as often", seed, mask.String())
		}
		masks[mask.String()] = true
	}
	if len(masks) != 3 {
		t.Errorf("%d masks of three seeds", len(masks))
	}
	for name, f := range map[string]func(g *Graph){
		"dropout": func(g *Graph) { g.Dropout(x, 0.5) },
		"rand":    func(g *Graph) { g.Rand().Float32() },
	} {
		g := New(t.Context())
		if f(g); !errors.Is(g.Err(), ErrSeed) {
			t.Errorf("%s without a seed: %v; want ErrSeed", name, g.Err())
		}
	}
	for _, p := range []float32{-0.1, 1.1, 2, float32(math.NaN())} {
		g := New(t.Context())
		g.Seed(1, 1)
		if g.Dropout(x, p); !errors.Is(g.Err(), fs.ErrInvalid) {
			t.Errorf("dropout with probability %g: %v; want fs.ErrInvalid", p, g.Err())
		}
	}
}

// A rank with a different second run ends the backward pass of the others.
func TestSecondRunFailsOnAllRanks(t *testing.T) {
	private := rand.New(rand.NewPCG(1, 2))
	errs := onRanks(t, inproc.New(2), func(r rank) error {
		g := New(r)
		x := leaf(t, []int64{2}, 1, 2)
		y := g.AllReduce(r, x, collective.Sum)
		z := g.Checkpoint(func(g *Graph, in ...*Var) *Var {
			if r.Rank() == 0 {
				return noise(g, in[0], private.Float32)
			}
			return in[0]
		}, nil, y)
		return g.Backward(g.Sum(z), nil)
	})
	for r, err := range errs {
		if r == 0 && !errors.Is(err, ErrReplay) || err == nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
