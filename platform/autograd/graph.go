// Package autograd computes gradients: operators on variables record how to go back,
// and [Graph.Backward] goes back from a result to the leaves.
//
// # Arithmetic
//
// Operators on float64 values compute in float64, and so are their results and gradients.
// Operators on float32, bfloat16 and float16 values compute in float32. Other dtypes, and
// float64 together with another dtype, are refused with [tensor.ErrDType]; [Graph.Cast] leads
// from one to the other. Operators that only move elements, such as [Graph.Reshape], take
// every dtype.
//
// # Changes in place
//
// The backward pass needs values of the forward pass. If a leaf that an operator needs, or a
// tensor of row numbers or classes, has other elements by then, the backward pass fails with
// [ErrChanged] instead of computing a wrong gradient. Checksums find it, however the memory was
// written. A program must not change the results of operators, which have no checksums.
//
// # Graphs
//
// Operators are methods of a [Graph], which decides whether they record and where they put
// the tensors that they keep for the backward pass. There is no global state. [Graph.NoGrad],
// [Graph.Keep] and [Graph.Checkpoint] derive graphs with other rules.
//
// # Errors
//
// An operator that fails returns a variable without data, and every operator on such a
// variable returns another one. [Graph.Err] and [Graph.Backward] return the first error, so a
// model is written without checks between its operators.
//
// # Ranks
//
// Operators on a [platform.TensorComm], such as [Graph.AllReduce], communicate with other
// ranks. They are gradients of the sum of the losses of all ranks, so a job with the mean
// over the ranks as its loss divides each rank's loss by their number.
//
// The ranks of a communicator must run its operators in the same order, and the backward
// pass must lead through the same ones: their operands require gradients on all ranks or on
// none, and the loss of every rank depends on their results. The backward pass then has the
// same order on all ranks, because it depends only on the order of the operators.
//
// If a graph fails on one rank, in the forward or backward pass, it interrupts the
// communicators that its operators have used: the other ranks get the error, and
// [platform.TensorComm.Renew] makes communicators that work.
//
// # Results
//
// The same operators on the same values give the same bits in every run, on any number
// of processors.
//
// # Random numbers
//
// Operators take random numbers from the generator of the graph, [Graph.Rand], which
// [Graph.Seed] gives a seed. Then a run with the same seeds has the same bits, and a
// checkpointed function has the same numbers when it runs again.
package autograd

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The errors of this package.
var (
	// ErrShape reports operands with shapes that do not fit together.
	ErrShape = errors.New("shapes do not fit")
	// ErrGrad reports a gradient that cannot be computed or that a variable cannot
	// have.
	ErrGrad = errors.New("no gradient")
	// ErrUsed reports a second backward pass through a part of a graph that the first one
	// has released.
	ErrUsed = errors.New("the backward pass was done already")
	// ErrReplay reports a checkpointed function that did something else when it ran
	// again in the backward pass, so that the gradients would be wrong.
	ErrReplay = errors.New("the second run of a checkpointed function differs from the first")
	// ErrChanged reports a tensor that was changed in place between the forward pass and the
	// backward pass, which needs the elements that it had.
	ErrChanged = errors.New("a tensor was changed between the forward pass and the backward pass")
	// ErrSeed reports a request for random numbers to a graph without a seed.
	ErrSeed = errors.New("the graph has no seed; call Graph.Seed")
)

// Var is a value in a computation: a leaf, such as a parameter or an input, or the result
// of an operator. A Var is for one goroutine at a time.
type Var struct {
	data  *tensor.Tensor
	grad  *tensor.Tensor
	needs bool
	made  *node // nil for a leaf
	view  bool  // a result that shares the memory of a leaf
	inner bool  // a result of a checkpointed function that was not recorded
	// add takes the gradients of a leaf that stands for a variable of another backward
	// pass. Nil: they are summed in grad.
	add func(grad *tensor.Tensor, own bool) error
}

// Leaf returns a variable that holds t itself, not a copy. It has no gradient until
// [Var.RequireGrad] asks for one.
func Leaf(t *tensor.Tensor) *Var { return &Var{data: t} }

// Data returns the value. It is nil if the operator that was to compute it failed.
func (v *Var) Data() *tensor.Tensor { return v.data }

// SetData replaces the value of a leaf. The gradient stays.
func (v *Var) SetData(t *tensor.Tensor) error {
	if v.made != nil {
		return fmt.Errorf("set the data of the result of %s: %w", v.made.name, ErrGrad)
	}
	v.data = t
	return nil
}

// dtype returns the dtype of the value, float32 if it has no data.
func (v *Var) dtype() tensor.DType {
	if v == nil || v.data == nil {
		return tensor.Float32
	}
	return v.data.DType()
}

// given reports whether the memory of the value is the caller's.
func (v *Var) given() bool { return v.made == nil || v.view }

// Shape returns the shape of the value.
func (v *Var) Shape() []int64 {
	if v == nil || v.data == nil {
		return nil
	}
	return v.data.Shape()
}

// RequireGrad makes a leaf have a gradient, or no longer have one. The results of
// operators are refused, as are values other than float64, float32, bfloat16 and float16; the
// error wraps [ErrGrad].
func (v *Var) RequireGrad(want bool) error {
	switch {
	case v.made != nil:
		return fmt.Errorf("require a gradient of the result of %s, not a leaf: %w", v.made.name, ErrGrad)
	case want && (v.data == nil || !isFloat(v.data.DType())):
		return fmt.Errorf("require a gradient of %v: %w", v.data, ErrGrad)
	}
	v.needs = want
	return nil
}

// RequiresGrad reports whether the variable is, or was computed from, a leaf that has a
// gradient.
func (v *Var) RequiresGrad() bool { return v.needs }

// Grad returns the gradient of a leaf: the sum over the calls of [Graph.Backward] since
// it was last set. It is nil, a float64 tensor if the leaf is float64, or a float32 tensor.
func (v *Var) Grad() *tensor.Tensor { return v.grad }

// SetGrad replaces the gradient. Nil clears it.
func (v *Var) SetGrad(t *tensor.Tensor) { v.grad = t }

// Item returns the only element of a value.
func (v *Var) Item() (float64, error) {
	switch {
	case v.data == nil:
		return 0, fmt.Errorf("the only element of a variable without data; see Graph.Err: %w", ErrShape)
	case v.data.NumElements() != 1:
		return 0, fmt.Errorf("the only element of %v: %w", v.data, ErrShape)
	}
	return values[float64](v.data)[0], nil
}

// node is an operator that ran: how to go back from its result to its inputs.
type node struct {
	name    string
	seq     int64 // nodes that ran later have larger ones
	in      []edge
	saved   []kept
	aliases bool
	back    func(*Pass) ([]*tensor.Tensor, error)
	used    bool
}

// edge leads from an operator to an operand. It does not hold the operand's data.
type edge struct {
	leaf  *Var  // nil if the operand needs no gradient or is a result
	made  *node // nil if the operand is a leaf
	shape []int64
	dtype tensor.DType // of the gradient
}

func (v *Var) edge() edge {
	e := edge{made: v.made, shape: v.Shape(), dtype: GradDType(v.dtype())}
	if v.needs && v.made == nil {
		e.leaf = v
	}
	return e
}

func (e edge) needs() bool { return e.leaf != nil || e.made != nil }

// Graph is how operators run. It belongs to one goroutine, and so do the graphs that are
// derived from it. Make one for each step of training.
type Graph struct {
	*shared
	ctx    context.Context
	record bool
	keeper Keeper
	replay *replay
	again  bool // the second run of a checkpointed function, or one inside of it
}

// shared is the common state of a graph and the graphs derived from it.
type shared struct {
	seq  int64
	err  error
	held map[*byte]*hold
	now  int64
	peak int64

	comms []platform.TensorComm // used by operators

	random rand.PCG // the generator of Rand
	seeded bool
}

type hold struct {
	count int
	bytes int64
}

// New returns a graph that records. The operators that communicate take ctx.
func New(ctx context.Context) *Graph {
	return &Graph{shared: &shared{held: map[*byte]*hold{}}, ctx: ctx, record: true}
}

// NoGrad returns a graph with operators that do not record. Their results are leaves.
func (g *Graph) NoGrad() *Graph {
	d := *g
	d.record = false
	return &d
}

// Keep returns a graph with operators that hand the tensors that they need in the backward
// pass to k.
func (g *Graph) Keep(k Keeper) *Graph {
	d := *g
	d.keeper = k
	return &d
}

// Seed gives the generator of [Graph.Rand] a seed, for the graph and all that are derived
// from it. A training loop uses the number of the step and a number that is the same on
// ranks that compute the same, and another one on ranks that do not.
func (g *Graph) Seed(step, stream uint64) {
	g.random, g.seeded = *rand.NewPCG(step, stream), true
}

// Rand returns the generator of random numbers, for operators such as [Graph.Dropout]. All
// graphs that are derived from one have the same. When a checkpointed function runs again,
// it draws the numbers that it drew before. Without a seed the graph fails with
// [ErrSeed].
func (g *Graph) Rand() *rand.Rand {
	if !g.seeded {
		g.Fail("random numbers", ErrSeed)
	}
	return rand.New(&g.random)
}

// Context returns the context of the graph.
func (g *Graph) Context() context.Context { return g.ctx }

// Err returns the first error of an operator.
func (g *Graph) Err() error { return g.err }

// Fail makes err the graph's error if it has none, and returns a variable without data.
// Operators that are written outside of this package use it.
func (g *Graph) Fail(name string, err error) *Var {
	if g.err == nil {
		g.err = fmt.Errorf("%s: %w", name, err)
		g.interrupt(g.err)
	}
	return &Var{}
}

// KeptBytes returns the memory that the operators keep for the backward pass, without that of
// leaves, and the largest it has been. Memory that several operators keep counts once; memory
// that a [Keeper] put elsewhere does not count.
func (g *Graph) KeptBytes() (now, peak int64) { return g.now, g.peak }

// Op is an operator.
type Op struct {
	// Name is for errors and for policies.
	Name string
	// In are the operands.
	In []*Var
	// Forward computes the result, and returns the tensors that Backward needs. It is
	// not called if an operand has no data. Its random numbers come from [Graph.Rand].
	Forward func() (out *tensor.Tensor, save []*tensor.Tensor, err error)
	// Backward returns the gradients of the operands, tensors of their shapes, float64 if the operand
	// is float64 and float32 otherwise. It may leave out gradients that are not needed: nil stands for
	// a gradient of zeros. The caller may change the gradients. A function that refers to a [Var]
	// keeps its data in memory until the backward pass; Pass has the shapes of the operands.
	Backward func(*Pass) ([]*tensor.Tensor, error)
	// Aliases says that Backward may return tensors that share memory with the gradient
	// it was given, so that the caller must not change them.
	Aliases bool
	// Always says that the backward pass visits the operator even if no operand has a
	// gradient.
	Always bool

	pending    bool // the result is not there when Forward returns
	arithmetic bool // computes with all operands
}

// Pass is the argument of Backward of an [Op].
type Pass struct {
	// Ctx is the context of the graph.
	Ctx context.Context
	// Grad is the gradient of the result. It must not be changed.
	Grad *tensor.Tensor
	// Saved are the tensors that Forward returned.
	Saved []*tensor.Tensor
	// Need says for each operand whether its gradient is needed, and Shapes has its shape.
	Need   []bool
	Shapes [][]int64

	engine *engine
}

// Apply runs an operator. A placeholder as an operand makes the graph fail.
func (g *Graph) Apply(o Op) *Var {
	needs := o.Always
	for _, v := range o.In {
		if v == nil || v.data == nil {
			return g.Fail(o.Name, fmt.Errorf("an operand has no data: %w", ErrShape))
		}
		if v.data.IsPlaceholder() {
			return g.Fail(o.Name, fmt.Errorf("operand %v: %w", v.data, tensor.ErrPlaceholder))
		}
		needs = needs || v.needs
	}

	if g.err != nil {
		return &Var{}
	}

	if o.arithmetic {
		if err := checkArithmetic(o.In); err != nil {
			return g.Fail(o.Name, err)
		}
	}

	out, save, err := g.replay.run(g.shared, o)
	if err != nil {
		return g.Fail(o.Name, err)
	}
	if !g.record || !needs {
		return &Var{data: out, inner: g.replay != nil}
	}

	n := &node{name: o.Name, seq: g.next(), aliases: o.Aliases, back: o.Backward}
	for _, v := range o.In {
		n.in = append(n.in, v.edge())
	}

	for _, t := range save {
		k, err := g.keep(o, t)
		if err != nil {
			return g.Fail(o.Name, err)
		}
		n.saved = append(n.saved, k)
	}

	view := slices.ContainsFunc(o.In, func(v *Var) bool { return v.given() && shares(out, v.data) })
	return &Var{data: out, needs: true, made: n, view: view}
}

// shares reports whether t begins in the memory of u.
func shares(t, u *tensor.Tensor) bool {
	a, b := t.Memory(), u.Memory()
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	at, from := reflect.ValueOf(a).Pointer(), reflect.ValueOf(b).Pointer()
	return at >= from && at < from+uintptr(len(b))
}

func (g *Graph) next() int64 {
	g.seq++
	return g.seq
}

// Backward computes the gradients of the leaves that v was computed from, and adds them to
// the gradients of the leaves. seed is the gradient of v; nil is allowed if v has one element
// and stands for 1. The kept tensors are released on the way.
func (g *Graph) Backward(v *Var, seed *tensor.Tensor) (err error) {
	defer func() {
		if err != nil {
			g.interrupt(err)
		}
	}()

	switch {
	case g.err != nil:
		return g.err
	case v == nil || v.data == nil || !v.needs:
		return fmt.Errorf("backward from a variable that depends on no leaf with a gradient: %w", ErrGrad)
	case seed == nil && v.data.NumElements() != 1:
		return fmt.Errorf("backward from %v without a gradient to begin with: %w", v.data, ErrGrad)
	}

	if seed == nil {
		if seed, err = tensor.Full(GradDType(v.dtype()), v.Shape(), float32(1)); err != nil {
			return err
		}
	}
	return g.backward(v, seed, 0)
}

func (g *Graph) backward(v *Var, seed *tensor.Tensor, floor int64) error {
	e := &engine{graph: g, floor: floor, grads: map[*node]*partial{}}
	if err := e.add(v.edge(), seed, false); err != nil {
		return err
	}
	return e.run()
}

// engine goes back through a graph, from the operators that ran last to the operators that
// ran first. The order depends only on the graph, so sums have the same bits in every run.
type engine struct {
	graph *Graph
	floor int64 // operators up to this one belong to another backward pass
	queue byAge
	grads map[*node]*partial
}

// partial is the gradient of a result, of which some operators may not have been heard
// yet.
type partial struct {
	sum *tensor.Tensor
	own bool // the engine may change sum
}

// step is a node of the queue, or a function that waits until all later nodes are done.
type step struct {
	seq  int64
	node *node
	call func() error
}

type byAge []step

func (q byAge) Len() int           { return len(q) }
func (q byAge) Less(i, j int) bool { return q[i].seq > q[j].seq }
func (q byAge) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byAge) Push(s any)        { *q = append(*q, s.(step)) }
func (q *byAge) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	*q = (*q)[:last]
	return s
}

// add adds t to the gradient of v.
func (e *engine) add(v edge, t *tensor.Tensor, own bool) error {
	switch {
	case t == nil || !v.needs():
		return nil
	case t.DType() != v.dtype || !slices.Equal(t.Shape(), v.shape):
		return fmt.Errorf("gradient %v, want %v%v: %w", t, v.dtype, v.shape, ErrShape)
	case v.leaf != nil && v.leaf.add != nil:
		return v.leaf.add(t, own)
	case v.leaf != nil && v.leaf.grad != nil && (v.leaf.grad.DType() != v.dtype || !slices.Equal(v.leaf.grad.Shape(), v.shape)):
		return fmt.Errorf("a variable has the gradient %v, want %v%v: %w", v.leaf.grad, v.dtype, v.shape, ErrShape)
	case v.leaf != nil:
		v.leaf.grad = accumulate(v.leaf.grad, t, own)
		return nil
	case v.made.seq <= e.floor:
		return fmt.Errorf("a checkpointed function uses a result of %s that is not among its operands: %w", v.made.name, ErrGrad)
	}

	p := e.grads[v.made]
	if p == nil {
		e.grads[v.made] = &partial{t, own}
		heap.Push(&e.queue, step{seq: v.made.seq, node: v.made})
		return nil
	}

	if !p.own {
		p.sum, p.own = p.sum.Clone(), true
	}
	p.sum = accumulate(p.sum, t, own)
	return nil
}

// accumulate returns sum + t. It may change sum, and takes over t if there is no sum and t
// belongs to the caller.
func accumulate(sum, t *tensor.Tensor, own bool) *tensor.Tensor {
	switch {
	case sum == nil && own:
		return t
	case sum == nil:
		return t.Clone()
	}

	if !sum.Contiguous() {
		sum = sum.Clone()
	}
	pick(sum.DType(), addTo[float32], addTo[float64])(sum, t)
	return sum
}

// addTo adds t to sum, which is contiguous.
func addTo[F float](sum, t *tensor.Tensor) {
	a, b := values[F](sum), values[F](t)
	each(len(a), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			a[i] += b[i]
		}
	})
}

func (e *engine) run() error {
	for len(e.queue) > 0 {
		if err := context.Cause(e.graph.ctx); err != nil {
			return err
		}

		s := heap.Pop(&e.queue).(step)
		if s.call != nil {
			if err := s.call(); err != nil {
				return err
			}
			continue
		}

		if err := e.back(s.node); err != nil {
			return fmt.Errorf("the backward pass through %s: %w", s.node.name, err)
		}
	}
	return nil
}

func (e *engine) back(n *node) error {
	if n.used {
		return ErrUsed
	}

	n.used = true
	p := &Pass{Ctx: e.graph.ctx, Grad: e.grads[n].sum, engine: e}
	own := e.grads[n].own
	delete(e.grads, n)
	for _, v := range n.in {
		p.Need, p.Shapes = append(p.Need, v.needs()), append(p.Shapes, v.shape)
	}

	p.Saved = make([]*tensor.Tensor, len(n.saved))
	for i, k := range slices.Backward(n.saved) { // a Keeper brings those back first that it took last
		t, err := k.get(e.graph.ctx)
		if err != nil {
			return err
		}
		p.Saved[i] = t
	}

	grads, err := n.back(p)
	if err != nil {
		return err
	}

	for i, t := range grads {
		// A tensor that shares memory with another gradient must not be changed.
		if err := e.add(n.in[i], t, !n.aliases || own && len(grads) == 1); err != nil {
			return err
		}
	}

	for _, k := range n.saved {
		e.graph.release(k)
	}

	n.saved, n.in, n.back = nil, nil, nil
	return nil
}

// Mark is a moment in the order in which operators run.
type Mark int64

// Mark returns the present moment.
func (g *Graph) Mark() Mark { return Mark(g.next()) }

// After calls f when the backward pass is past every operator that ran after the mark.
func (p *Pass) After(m Mark, f func() error) {
	heap.Push(&p.engine.queue, step{seq: int64(m), call: f})
}

// Result names the result of an operator. It does not hold the data.
type Result struct{ made *node }

// Result returns the name of v, which is not a leaf.
func (v *Var) Result() Result { return Result{v.made} }

// PendingGrad returns the gradient that has reached r, or nil. A function that
// [Pass.After] calls uses it.
func (p *Pass) PendingGrad(r Result) *tensor.Tensor {
	if part := p.engine.grads[r.made]; part != nil {
		return part.sum
	}
	return nil
}

// ReplaceGrad replaces the gradient that has reached r, if any has.
func (p *Pass) ReplaceGrad(r Result, t *tensor.Tensor) error {
	part := p.engine.grads[r.made]
	if part == nil {
		return nil
	}
	if err := sameShape(part.sum, t); err != nil {
		return err
	}
	part.sum, part.own = t, false
	return nil
}
