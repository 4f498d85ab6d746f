package nn

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Param is a parameter of a model: a leaf that has a gradient, and how the tensor is
// spread over ranks. It is for one goroutine at a time.
type Param struct {
	leaf    *autograd.Var
	sharded *shard.Tensor // nil if the rank holds the whole tensor
	view    func(*autograd.Graph) *autograd.Var
}

// NewParam returns a parameter that holds t itself, not a copy. It returns the errors of
// [autograd.Var.RequireGrad].
func NewParam(t *tensor.Tensor, requiresGrad bool) (*Param, error) {
	p := &Param{leaf: autograd.Leaf(t)}
	if t == nil {
		return nil, fmt.Errorf("parameter without a tensor: %w", tensor.ErrShape)
	}
	return p, p.leaf.RequireGrad(requiresGrad)
}

// ZeroParam returns a parameter of zeros.
func ZeroParam(d tensor.DType, shape []int64, requiresGrad bool) (*Param, error) {
	t, err := tensor.New(d, shape)
	if err != nil {
		return nil, err
	}
	return NewParam(t, requiresGrad)
}

// Var returns the leaf. It holds this rank's share, and so does its gradient. Use
// [Param.SetLocal] to replace its data.
func (p *Param) Var() *autograd.Var { return p.leaf }

// Value returns the variable for forward functions: the leaf, or the result of the function
// that [Param.SetView] was given. The value of a nil parameter is nil.
func (p *Param) Value(g *autograd.Graph) *autograd.Var {
	switch {
	case p == nil:
		return nil
	case p.view != nil:
		return p.view(g)
	}
	return p.leaf
}

// SetView makes Value return the result of view, for example the whole weight, gathered from
// the shares of all ranks. Nil makes it return the leaf again.
func (p *Param) SetView(view func(g *autograd.Graph) *autograd.Var) { p.view = view }

// SetLayout makes p the share of a rank: it replaces the whole tensor by a copy of the rank's
// part, and clears the gradient. A placeholder remains one. A second layout is an error that
// wraps [shard.ErrLayout].
func (p *Param) SetLayout(layout shard.Layout, rank int) error {
	if p.sharded != nil {
		return fmt.Errorf("the parameter has the layout %v already: %w", p.sharded.Layout(), shard.ErrLayout)
	}

	whole := p.Local()
	shape, err := layout.LocalShape(whole.Shape(), rank)
	if err != nil {
		return err
	}

	create := tensor.New
	if whole.IsPlaceholder() {
		create = tensor.Placeholder
	}

	local, err := create(whole.DType(), shape)
	if err != nil {
		return err
	}

	s, err := shard.New(layout, whole.Shape(), rank, local)
	if err != nil {
		return err
	}

	if !whole.IsPlaceholder() {
		if err := cut(s, whole); err != nil {
			return err
		}
	}

	p.sharded = s
	p.leaf.SetGrad(nil)
	return p.leaf.SetData(local)
}

// cut copies the parts of s from the whole tensor.
func cut(s *shard.Tensor, whole *tensor.Tensor) error {
	for i, box := range s.Boxes() {
		dst, err := s.Part(i)
		if err != nil {
			return err
		}

		src, err := whole.Narrow(box)
		if err != nil {
			return err
		}

		if err := tensor.Copy(dst, src); err != nil {
			return err
		}
	}
	return nil
}

// Sharded returns p as a share of a tensor, or nil if p has no layout.
func (p *Param) Sharded() *shard.Tensor { return p.sharded }

// Shape returns the shape of the whole tensor.
func (p *Param) Shape() []int64 {
	if p.sharded != nil {
		return p.sharded.GlobalShape()
	}
	return p.LocalShape()
}

// LocalShape returns the shape of this rank's share.
func (p *Param) LocalShape() []int64 { return p.Local().Shape() }

// Local returns this rank's share, or the whole tensor if p has no layout.
func (p *Param) Local() *tensor.Tensor { return p.leaf.Data() }

// SetLocal makes p hold t itself instead of the current tensor. The shape must be the same;
// the dtype may be another. The gradient stays.
func (p *Param) SetLocal(t *tensor.Tensor) error {
	if err := sameShape(p.Local(), t); err != nil {
		return err
	}
	if _, err := NewParam(t, p.leaf.RequiresGrad()); err != nil {
		return err
	}

	if p.sharded != nil {
		s, err := shard.New(p.sharded.Layout(), p.sharded.GlobalShape(), p.sharded.Rank(), t)
		if err != nil {
			return err
		}
		p.sharded = s
	}
	return p.leaf.SetData(t)
}

// Load copies t, of the shape of this rank's share, into p, cast to p's dtype. It gives
// memory to a placeholder first.
func (p *Param) Load(t *tensor.Tensor) error {
	if err := sameShape(p.Local(), t); err != nil {
		return err
	}
	if err := p.Local().Materialize(); err != nil {
		return err
	}
	return tensor.Convert(p.Local(), t, tensor.CastAny)
}

// ElementSize returns the bytes of an element.
func (p *Param) ElementSize() int { return p.Local().DType().Size() }

// state returns p as an entry of a checkpoint.
func (p *Param) state() any {
	if p.sharded != nil {
		return p.sharded
	}
	return p.Local()
}

// loadState takes an entry of a checkpoint, which may be p's own.
func (p *Param) loadState(v any) error {
	if v == p.state() {
		return nil
	}
	t, err := local(v)
	if err != nil {
		return err
	}
	return p.Load(t)
}

// holds reports whether p has the values of an entry of a checkpoint, cast to p's dtype.
func (p *Param) holds(v any) bool {
	t, err := local(v)
	if err != nil || sameShape(p.Local(), t) != nil {
		return false
	}
	t, err = tensor.Cast(t, p.Local().DType())
	return err == nil && tensor.Equal(p.Local(), t)
}

// local returns this rank's share of an entry of a checkpoint.
func local(v any) (*tensor.Tensor, error) {
	switch v := v.(type) {
	case *tensor.Tensor:
		return v, nil
	case *shard.Tensor:
		return v.Local(), nil
	}
	return nil, fmt.Errorf("a %T for a parameter: %w", v, tensor.ErrDType)
}
