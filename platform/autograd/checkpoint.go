package autograd

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Keeper decides where tensors stay between the forward pass and the backward pass.
type Keeper interface {
	// Keep takes a tensor that an operator needs in the backward pass. A nil Kept leaves
	// the tensor where it is.
	Keep(ctx context.Context, s Saved) (Kept, error)
}

// Saved is a tensor that an operator needs in the backward pass.
type Saved struct {
	Op     string
	Tensor *tensor.Tensor
	// Leaf says that it is the data of a leaf that has a gradient, such as a parameter,
	// which stays in memory anyway.
	Leaf bool

	graph *shared // tensors of other graphs may have the same memory, but other contents
}

// Kept is a tensor that a [Keeper] has put somewhere.
type Kept interface {
	// Get brings the tensor back.
	Get(ctx context.Context) (*tensor.Tensor, error)
	// Release frees the memory of the kept tensor. The tensor that Get returned is no longer in
	// use.
	Release()
}

// kept is a tensor that a node has saved.
type kept struct {
	t     *tensor.Tensor // if at is nil
	at    Kept
	leaf  bool
	given bool   // the caller can change it
	sum   uint64 // of its elements if it is given
}

func (k kept) get(ctx context.Context) (t *tensor.Tensor, err error) {
	if t = k.t; k.at != nil {
		t, err = k.at.Get(ctx)
	}
	if err == nil && k.given && checksum(t) != k.sum {
		err = fmt.Errorf("%v: %w", t, ErrChanged)
	}
	return t, err
}

func (g *Graph) keep(o Op, t *tensor.Tensor) (kept, error) {
	k := kept{t: t, leaf: slices.ContainsFunc(o.In, func(v *Var) bool { return v.data == t && v.made == nil && v.needs })}
	// Row numbers and classes are not operands, but the caller's.
	k.given = t.DType().IsInteger() || slices.ContainsFunc(o.In, func(v *Var) bool { return v.given() && shares(t, v.data) })
	if k.given {
		k.sum = checksum(t)
	}

	if g.keeper != nil {
		at, err := g.keeper.Keep(g.ctx, Saved{o.Name, t, k.leaf, g.shared})
		if err != nil {
			return kept{}, fmt.Errorf("keep a tensor for the backward pass: %w", err)
		}
		if at != nil {
			k.t, k.at = nil, at
		}
	}

	if k.counts() {
		g.hold(k.t)
	}
	return k, nil
}

func (g *Graph) release(k kept) {
	if k.counts() {
		g.drop(k.t)
	}
	if k.at != nil {
		k.at.Release()
	}
}

// counts says whether the tensor is in memory only for the backward pass.
func (k kept) counts() bool { return k.t != nil && !k.leaf && k.t.NumBytes() > 0 }

func (s *shared) hold(t *tensor.Tensor) {
	at := &t.Memory()[0]
	h := s.held[at]
	if h == nil {
		h = &hold{bytes: t.NumBytes()}
		s.held[at] = h
		s.now += h.bytes
		s.peak = max(s.peak, s.now)
	}
	h.count++
}

func (s *shared) drop(t *tensor.Tensor) {
	at := &t.Memory()[0]
	h := s.held[at]
	if h.count--; h.count == 0 {
		delete(s.held, at)
		s.now -= h.bytes
	}
}

// Policy says of an operator inside of [Graph.Checkpoint] whether its result is saved
// rather than computed again. op is the name of the operator, and n is the number of
// operators of that name before it in the function, without those inside of further
// checkpoints. A policy is asked once for each operator, in the first run: the second run
// keeps to its answers.
type Policy func(op string, n int) bool

// SaveOps is the policy that saves the results of the named operators.
func SaveOps(names ...string) Policy {
	return func(op string, _ int) bool { return slices.Contains(names, op) }
}

// Func is a part of a computation. It must do the same each time: the same operators on
// the same values in the same order. Beside its operands it may use leaves, but not the
// results of other operators, and [Graph.Rand] for random numbers.
type Func func(g *Graph, in ...*Var) *Var

// Checkpoint runs f and keeps only its operands. In the backward pass f runs again, and this
// time the operators keep the tensors that they need. policy, if it is not nil, selects
// operators with results that are kept too, because they cost more time than memory.
//
// The second run is compared with the first: the names of the operators, the dtypes and
// shapes of their operands and results, and checksums of the results and of the leaves, row
// numbers and classes that f uses. The random numbers of [Graph.Rand] are the same in both. If f
// does anything else in the second run, or the tensors that it uses have changed, the backward
// pass fails with an error that wraps [ErrReplay].
func (g *Graph) Checkpoint(f Func, policy Policy, in ...*Var) *Var {
	if !g.record {
		d := *g
		d.replay = g.replay.inside() // inside of another checkpoint; its second run comes back here
		return f(&d, in...)
	}

	results := &replay{journal: new(journal), policy: policy, outer: g.replay.inside()}
	var operands []edge
	whole := *g
	whole.replay = nil // the first run of an outer checkpoint has no operator for this one
	return whole.Apply(Op{
		Name: "checkpoint", In: in, Always: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			first := g.NoGrad()
			first.keeper, first.replay = nil, results
			results.random = g.random
			out := f(first, in...)
			results.outer = nil // its run is over when the second one comes
			results.drawn = g.random

			if g.err != nil {
				return nil, nil, g.err
			}

			if out == nil {
				return nil, nil, fmt.Errorf("the function returned no variable: %w", ErrShape)
			}

			var save []*tensor.Tensor
			for _, v := range in {
				save, operands = append(save, v.data), append(operands, v.edge())
			}

			results.each(g.hold)
			return out.data, save, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			again, floor := *g, g.next()
			again.again, again.replay = true, results
			again.keeper = nil // recomputed tensors are needed at once
			leaves := make([]*Var, len(p.Saved))
			for i, t := range p.Saved {
				// Gradients go to the operands one by one, as without a checkpoint, so that
				// their sums have the same bits.
				add := func(grad *tensor.Tensor, own bool) error { return p.engine.add(operands[i], grad, own) }
				leaves[i] = &Var{data: t, needs: p.Need[i], add: add}
			}

			results.begin()
			now := g.random
			g.random = results.random
			out := f(&again, leaves...)
			results.each(g.drop)
			if g.err != nil {
				return nil, g.err
			}

			if err := results.end(g.random); err != nil {
				return nil, err
			}

			g.random = now
			if out == nil || !out.needs {
				return nil, nil // f has no leaf with a gradient
			}
			return nil, again.backward(out, p.Grad, floor)
		},
	})
}
