package nn

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/tensor"
)

// PreHook runs before the forward function of a module. It returns the inputs for the
// function, or nil to leave them as they are.
type PreHook func(m *Module, g *autograd.Graph, in []*autograd.Var) ([]*autograd.Var, error)

// preHook is a hook before the forward function with the named arguments of the call.
type preHook func(m *Module, g *autograd.Graph, in []*autograd.Var, k any) ([]*autograd.Var, any, error)

// BackwardPreHook runs in the backward pass before the operators of a module, with the
// gradient of its output, which it must not change or use later. It returns another one,
// which stays as it is, or nil to leave it.
type BackwardPreHook func(m *Module, out *tensor.Tensor) (*tensor.Tensor, error)

// BackwardHook runs in the backward pass after all operators of a module, when its
// parameters have their gradients. in are the gradients of the inputs, nil if an input has no
// gradient, and out is the gradient of the output. The hook must not change them or use
// them later. It returns new gradients of the inputs, or nil to leave all of them; a nil
// element leaves the gradient of one input.
type BackwardHook func(m *Module, in []*tensor.Tensor, out *tensor.Tensor) ([]*tensor.Tensor, error)

// Order says where a hook goes among the hooks of its kind.
type Order bool

// The orders.
const (
	Last  Order = false
	First Order = true
)

// BeforeForward adds a hook that runs before the forward function in later calls. remove
// removes it. [BeforeForwardWith] adds one that gets named arguments.
func (m *Module) BeforeForward(at Order, h PreHook) (remove func()) {
	return m.before.add(at, func(m *Module, g *autograd.Graph, in []*autograd.Var, k any) ([]*autograd.Var, any, error) {
		in, err := h(m, g, in)
		return in, k, err
	})
}

// BeforeBackward adds a hook that runs before the backward pass through later calls. remove
// removes it.
func (m *Module) BeforeBackward(at Order, h BackwardPreHook) (remove func()) {
	return m.backPre.add(at, h)
}

// AfterBackward adds a hook that runs after the backward pass through later calls. remove
// removes it.
func (m *Module) AfterBackward(at Order, h BackwardHook) (remove func()) {
	return m.backward.add(at, h)
}

// hooks are functions in the order in which they run. A list is not changed, but replaced.
type hooks[H any] struct{ list []*H }

func (s *hooks[H]) add(at Order, h H) func() {
	if at == First {
		s.list = slices.Concat([]*H{&h}, s.list)
	} else {
		s.list = slices.Concat(s.list, []*H{&h})
	}
	return func() {
		s.list = slices.DeleteFunc(slices.Clone(s.list), func(e *H) bool { return e == &h })
	}
}

var errForward = errors.New("the module has no forward function")

// Call runs the hooks and the forward function. Hooks that are added later do not run in
// the backward pass from this call.
func (m *Module) Call(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
	return m.call(g, nil, in)
}

// call is Call with named arguments. Nil means zero ones.
func (m *Module) call(g *autograd.Graph, k any, in []*autograd.Var) *autograd.Var {
	if m.forward == nil && m.keywords.of == nil {
		m.fail(errForward)
	}

	if m.err != nil {
		return g.Fail(m.kind.String(), m.err)
	}

	for _, h := range m.before.list {
		replaced, args, err := (*h)(m, g, in, k)
		if err != nil {
			return g.Fail("hook before "+m.kind.String(), err)
		}
		if k = args; replaced != nil {
			in = replaced
		}
	}

	forward := m.bind(k)
	if len(m.backPre.list)+len(m.backward.list) == 0 {
		return forward(g, in...)
	}

	c := &call{m: m, before: m.backPre.list, after: m.backward.list}
	in = c.enter(g, in)
	return c.exit(g, forward(g, in...))
}

// call is a call of a module that has hooks in the backward pass. Identity operators
// enclose the forward function: after the entries comes the mark, so that the backward pass
// goes through the exit, all operators of the function, the mark and then the entries.
type call struct {
	m       *Module
	before  []*BackwardPreHook
	after   []*BackwardHook
	mark    autograd.Mark
	entries []*autograd.Result // nil for an input without a gradient
}

func (c *call) enter(g *autograd.Graph, in []*autograd.Var) []*autograd.Var {
	inside := slices.Clone(in)
	c.entries = make([]*autograd.Result, len(in))
	for i, v := range in {
		// Also without a gradient: inside of a checkpoint only the second run has gradients,
		// and it must have the same operators as the first.
		inside[i] = identity(g, "entry", v, func(p *autograd.Pass) (*tensor.Tensor, error) { return p.Grad, nil })
		if inside[i].RequiresGrad() {
			r := inside[i].Result()
			c.entries[i] = &r
		}
	}

	c.mark = g.Mark()
	return inside
}

func (c *call) exit(g *autograd.Graph, out *autograd.Var) *autograd.Var {
	return identity(g, "exit", out, func(p *autograd.Pass) (*tensor.Tensor, error) {
		grad := p.Grad
		for _, h := range c.before {
			replaced, err := (*h)(c.m, grad)
			if err == nil && replaced != nil {
				err = sameGrad(grad, replaced)
				grad = replaced
			}
			if err != nil {
				return nil, fmt.Errorf("hook: %w", err)
			}
		}

		if len(c.after) > 0 {
			p.After(c.mark, func() error { return c.done(p, grad) })
		}
		if grad != p.Grad || len(c.after) > 0 {
			return grad.Clone(), nil // the clone may be changed; the gradient that a hook holds may not
		}
		return grad, nil
	})
}

// done runs the hooks when the backward pass is past all operators of the module.
func (c *call) done(p *autograd.Pass, out *tensor.Tensor) error {
	for _, h := range c.after {
		grads := make([]*tensor.Tensor, len(c.entries))
		for i, e := range c.entries {
			if e != nil {
				grads[i] = p.PendingGrad(*e)
			}
		}

		replaced, err := (*h)(c.m, grads, out)
		if err == nil && replaced != nil {
			err = c.replace(p, grads, replaced)
		}
		if err != nil {
			return fmt.Errorf("hook after the backward pass through %v: %w", c.m.kind, err)
		}
	}
	return nil
}

func (c *call) replace(p *autograd.Pass, grads, by []*tensor.Tensor) error {
	if len(by) != len(grads) {
		return fmt.Errorf("%d gradients of %d inputs: %w", len(by), len(grads), autograd.ErrShape)
	}

	for i, t := range by {
		switch {
		case t == nil:
			continue
		case grads[i] == nil:
			return fmt.Errorf("a gradient for input %d, which needs no gradient: %w", i, autograd.ErrGrad)
		}

		if err := sameGrad(grads[i], t); err != nil {
			return err
		}
		if err := p.ReplaceGrad(*c.entries[i], t); err != nil {
			return err
		}
	}

	return nil
}

// identity returns x as the result of an operator with the Backward f.
func identity(g *autograd.Graph, name string, x *autograd.Var, f func(*autograd.Pass) (*tensor.Tensor, error)) *autograd.Var {
	if x == nil {
		return g.Fail(name, fmt.Errorf("no variable: %w", autograd.ErrShape))
	}

	data := x.Data()
	return g.Apply(autograd.Op{
		Name: name, In: []*autograd.Var{x}, Aliases: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) { return data, nil, nil },
		Backward: func(p *autograd.Pass) ([]*tensor.Tensor, error) {
			grad, err := f(p)
			return []*tensor.Tensor{grad}, err
		},
	})
}

func sameGrad(old, t *tensor.Tensor) error {
	if t.DType() != old.DType() || !slices.Equal(old.Shape(), t.Shape()) {
		return fmt.Errorf("gradient %v in place of %v: %w", t, old, autograd.ErrShape)
	}
	return nil
}
