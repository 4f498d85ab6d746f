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
	// Release frees what the keeper holds of it. The tensor that Get returned is in use
	// no more.
	Release()
}

// kept is a tensor that a node has saved.
type kept struct {
	t    *tensor.Tensor // if at is nil
	at   Kept
	leaf bool
}

func (k kept) get(ctx context.Context) (*tensor.Tensor, error) {
	if k.at != nil {
		return k.at.Get(ctx)
	}
	return k.t, nil
}

func (g *Graph) keep(o Op, t *tensor.Tensor) (kept, error) {
	k := kept{t: t, leaf: slices.ContainsFunc(o.In, func(v *Var) bool { return v.data == t && v.made == nil && v.needs })}
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

// Policy says of an operator inside of [Graph.Checkpoint], by its name, whether its result is
// saved rather than computed again.
type Policy func(op string) bool

// SaveOps is the policy that saves the results of the named operators.
func SaveOps(names ...string) Policy {
	return func(op string) bool { return slices.Contains(names, op) }
}

// Func is a part of a computation. It must do the same each time: the same operators in
// the same order. Beside its operands it may use leaves, but not the results of other
// operators.
type Func func(g *Graph, in ...*Var) *Var

// Checkpoint runs f and keeps only its operands. In the backward pass f runs again, this
// time with what its operators need. policy, if it is not nil, names operators whose
// results are kept too, because they cost more time than memory.
func (g *Graph) Checkpoint(f Func, policy Policy, in ...*Var) *Var {
	if !g.record {
		d := *g
		d.replay = nil // inside of another checkpoint, whose second run comes back here
		return f(&d, in...)
	}
	results := &replay{policy: policy}
	var operands []edge
	whole := *g
	whole.replay = nil // the first run of an outer checkpoint has no operator for this one
	return whole.Apply(Op{
		Name: "checkpoint", In: in, Always: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			first := g.NoGrad()
			first.keeper, first.replay = nil, results
			out := f(first, in...)
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
			again.again, again.replay = true, results.again()
			again.keeper = nil // what is computed again is needed at once
			leaves := make([]*Var, len(p.Saved))
			for i, t := range p.Saved {
				// Gradients go to the operands one by one, as without a checkpoint, so that
				// their sums have the same bits.
				add := func(grad *tensor.Tensor, own bool) error { return p.engine.add(operands[i], grad, own) }
				leaves[i] = &Var{data: t, needs: p.Need[i], add: add}
			}
			out := f(&again, leaves...)
			results.each(g.drop)
			if g.err != nil || out == nil || !out.needs {
				return nil, g.err // without an error, f has no leaf with a gradient
			}
			return nil, again.backward(out, p.Grad, floor)
		},
	})
}

// replay keeps the results of some operators on the first run of a checkpointed function
// and returns them on the second. A nil replay does neither.
type replay struct {
	policy  Policy
	kept    []result
	reading bool
	at      int
}

// result is what an operator returned. An operand that it saved is not kept: on the
// second run it is there again.
type result struct {
	op      string
	out     *tensor.Tensor
	save    []*tensor.Tensor
	operand []int // of each saved tensor the number of the operand that it is, or -1
}

// each calls f for each tensor that is kept and has memory.
func (r *replay) each(f func(t *tensor.Tensor)) {
	for _, k := range r.kept {
		for _, t := range append(slices.Clone(k.save), k.out) {
			if t != nil && t.NumBytes() > 0 {
				f(t)
			}
		}
	}
}

// again returns the replay of the second run.
func (r *replay) again() *replay { return &replay{policy: r.policy, kept: r.kept, reading: true} }

func (r *replay) run(o Op) (*tensor.Tensor, []*tensor.Tensor, error) {
	if r == nil || r.policy == nil || !r.policy(o.Name) {
		return o.Forward()
	}
	if !r.reading {
		out, save, err := o.Forward()
		if err != nil {
			return nil, nil, err
		}
		k := result{op: o.Name, out: out}
		for _, t := range save {
			i := slices.IndexFunc(o.In, func(v *Var) bool { return v.data == t })
			if i >= 0 {
				t = nil
			}
			k.save, k.operand = append(k.save, t), append(k.operand, i)
		}
		r.kept = append(r.kept, k)
		return out, save, nil
	}
	if r.at == len(r.kept) || r.kept[r.at].op != o.Name {
		return nil, nil, fmt.Errorf("the second run of a checkpointed function differs from the first: %w", ErrGrad)
	}
	k := r.kept[r.at]
	r.at++
	save := slices.Clone(k.save)
	for i, operand := range k.operand {
		if operand >= 0 {
			save[i] = o.In[operand].data
		}
	}
	return k.out, save, nil
}
