package autograd

import (
	"runtime"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// reachable returns the bytes that are reachable.
func reachable() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // memory that the cleanups of the first have freed
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

const (
	unit     = 1 << 18 // the bytes of each tensor of a deep model
	segments = 5
	depth    = 4 // operators of a segment
	slack    = unit / 2
)

// usage is the memory that a deep model adds.
type usage struct {
	forward    int64 // when the forward pass is done
	back       int64 // the most while the backward pass is under way
	kept, peak int64 // of KeptBytes
	grad       *tensor.Tensor
}

// measure runs a chain of segments and looks at the heap after the forward pass and at
// each segment of the backward pass.
func measure(t *testing.T, g *Graph, segment func(g *Graph, x *Var) *Var, settle func()) usage {
	t.Helper()
	x := leaf(t, []int64{unit / 4 / 512, 512})
	before := reachable()
	var u usage
	probe := func(y *Var) *Var {
		return g.Apply(Op{Name: "probe", In: []*Var{y}, Aliases: true,
			Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) { return y.data, nil, nil },
			Backward: func(p *Pass) ([]*tensor.Tensor, error) {
				u.back = max(u.back, reachable()-before)
				return []*tensor.Tensor{p.Grad}, nil
			},
		})
	}
	y := g.Scale(x, 1)
	for range segments {
		y = probe(segment(g, y))
	}
	loss := g.Sum(y)
	y = nil // the result of the last segment
	settle()
	u.forward = reachable() - before
	u.kept, u.peak = g.KeptBytes()
	must.Do(t, g.Backward(loss, nil))
	_, u.peak = g.KeptBytes()
	u.grad = x.Grad()
	return u
}

// chain returns a segment: each of its operators keeps its operand.
func chain(t *testing.T) Func {
	by := leaf(t, nil, 0.9)
	return func(g *Graph, in ...*Var) *Var {
		y := in[0]
		for range depth / 2 {
			y = g.Mul(g.GELU(y), by)
		}
		return y
	}
}

func within(t *testing.T, what string, got, lo, hi int64) {
	t.Helper()
	if got < lo || got > hi {
		t.Errorf("%s: %.2f units; want %.2f to %.2f", what, float64(got)/unit, float64(lo)/unit, float64(hi)/unit)
	}
}

// Recomputation keeps the operand of each segment, and one segment in the backward pass.
// Swapping keeps only the tensors on their way to or from the file. A policy keeps the
// results that it names. The real memory falls like the count, and no gradient changes.
func TestCheckpointsAndSwappingLowerMemory(t *testing.T) {
	f := chain(t)
	plain := func(g *Graph, x *Var) *Var { return f(g, x) }
	checkpoint := func(p Policy) func(g *Graph, x *Var) *Var {
		return func(g *Graph, x *Var) *Var { return g.Checkpoint(f, p, x) }
	}
	none := func() {}
	all := measure(t, New(t.Context()), plain, none)
	const full = segments * depth * unit
	within(t, "kept", all.kept, full, full)
	within(t, "heap after the forward pass", all.forward, full-slack, full+slack)

	again := measure(t, New(t.Context()), checkpoint(nil), none)
	within(t, "kept with checkpoints", again.kept, segments*unit, segments*unit)
	within(t, "most kept with checkpoints", again.peak, (segments+depth-1)*unit, (segments+depth)*unit)
	within(t, "heap after the forward pass with checkpoints", again.forward, segments*unit-slack, segments*unit+slack)
	within(t, "heap in the backward pass with checkpoints", again.back, -slack, (segments+2)*unit+slack) // with gradients

	// Of a segment the second result and the last are kept; that is the operand of the next.
	some := measure(t, New(t.Context()), checkpoint(SaveOps("mul")), none)
	const half = (1 + segments*depth/2) * unit
	within(t, "kept with a policy", some.kept, half, half)
	within(t, "heap after the forward pass with a policy", some.forward, half-slack, half+slack)

	const buffer = 2 * unit
	s, file := newSwap(t, &SwapOptions{BufferBytes: buffer})
	settle := func() {
		must.Do(t, s.stream.Synchronize(t.Context()))
	}
	swapped := measure(t, New(t.Context()).Keep(s), plain, settle)
	within(t, "kept with swapping", swapped.peak, 0, 0)
	within(t, "heap after the forward pass with swapping", swapped.forward, -slack, slack)
	within(t, "heap in the backward pass with swapping", swapped.back, -slack, buffer+2*unit+slack)
	if n := len(file.reads); n < segments*depth-2 {
		t.Errorf("%d tensors were read", n)
	}

	s, file = newSwap(t, &SwapOptions{BufferBytes: buffer})
	both := measure(t, New(t.Context()).Keep(s), checkpoint(nil), settle)
	within(t, "most kept with both", both.peak, 0, depth*unit)
	within(t, "heap after the forward pass with both", both.forward, -slack, slack)
	if n := len(file.writes); n != segments {
		t.Errorf("%d tensors were written; want the operands of the segments, and not what is computed again", n)
	}

	for name, u := range map[string]usage{"checkpoints": again, "a policy": some, "swapping": swapped, "both": both} {
		if !tensor.Equal(u.grad, all.grad) {
			t.Errorf("%s: the gradient differs", name)
		}
	}
}

// If a policy keeps the result of an operator, the tensors that the operator needs in the
// backward pass are counted too.
func TestPolicyCountsAllThatIsKept(t *testing.T) {
	x := leaf(t, []int64{1, 8, 4})
	g := New(t.Context())
	y := g.Checkpoint(func(g *Graph, in ...*Var) *Var { return g.CausalAttention(in[0], in[0], in[0], 2) }, SaveOps("attention"), x)
	if now, _ := g.KeptBytes(); now != (8*4+2*8*8)*4 { // the result and the weights
		t.Errorf("%d bytes are kept", now)
	}
	must.Do(t, g.Backward(g.Sum(y), nil))
	if now, _ := g.KeptBytes(); now != 0 {
		t.Errorf("%d bytes are kept after the backward pass", now)
	}
}

// Every operator that keeps tensors hands over all that it holds: the memory of swapped
// tensors is freed.
func TestOperatorsHoldNothingThatIsSwapped(t *testing.T) {
	const n = 256
	w, b := leaf(t, []int64{n, n}), leaf(t, []int64{n})
	ids, err := tensor.New(tensor.Int64, []int64{n})
	must.Do(t, err)
	for name, f := range map[string]func(g *Graph, x *Var) *Var{
		"mul":       func(g *Graph, x *Var) *Var { return g.Mul(x, g.Scale(x, 2)) },
		"matmul":    func(g *Graph, x *Var) *Var { return g.MatMul(x, g.Scale(x, 2)) },
		"linear":    func(g *Graph, x *Var) *Var { return g.Linear(x, w, b) },
		"embedding": func(g *Graph, x *Var) *Var { return g.Embedding(x, ids) },
		"gelu":      func(g *Graph, x *Var) *Var { return g.GELU(x) },
		"layernorm": func(g *Graph, x *Var) *Var { return g.LayerNorm(x, b, b) },
		"softmax":   func(g *Graph, x *Var) *Var { return g.Softmax(x) },
		"attention": func(g *Graph, x *Var) *Var {
			return g.Reshape(g.CausalAttention(g.Reshape(x, 1, n, n), g.Reshape(x, 1, n, n), g.Reshape(g.Scale(x, 2), 1, n, n), 1), n, n)
		},
		"crossentropy": func(g *Graph, x *Var) *Var { return g.CrossEntropy(x, ids) },
		"cat":          func(g *Graph, x *Var) *Var { return g.Narrow(g.Cat(0, x, x), 0, 0, n) },
		"split": func(g *Graph, x *Var) *Var {
			parts := g.Split(g.Scale(x, 2), n/2, n/2)
			return g.Mul(parts[0], parts[1])
		},
		"checkpoint": func(g *Graph, x *Var) *Var { return g.Checkpoint(chain(t), nil, x) },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newSwap(t, nil)
			x := leaf(t, []int64{n, n}) // a unit
			before := reachable()
			g := New(t.Context()).Keep(s)
			loss := g.Sum(f(g, g.Scale(x, 0.5)))
			must.Do(t, s.stream.Synchronize(t.Context()))
			within(t, "heap after the forward pass", reachable()-before, -slack, slack)
			must.Do(t, g.Backward(loss, nil))
		})
	}
}
