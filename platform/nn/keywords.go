package nn

import (
	"fmt"
	"io/fs"
	"reflect"

	"github.com/cairn-ckpt/cairn/platform/autograd"
)

// keywords is a forward function that takes named arguments.
type keywords struct {
	of   reflect.Type              // nil: the module takes none
	bind func(k any) autograd.Func // nil arguments are zero
}

// NewWith returns a module with a forward function that takes named arguments, the fields of
// a struct K, beside its inputs. [CallWith] runs it; [Module.Call] runs it with the zero K.
func NewWith[K any](kind Kind, forward func(g *autograd.Graph, k K, in ...*autograd.Var) *autograd.Var) *Module {
	m := New(kind, nil)
	if forward == nil {
		return m
	}
	m.keywords = keywords{reflect.TypeFor[K](), func(k any) autograd.Func {
		args, _ := k.(K)
		return func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var { return forward(g, args, in...) }
	}}
	return m
}

// CallWith is [Module.Call] with named arguments. A module that was not made by [NewWith] for
// K fails the graph with an error that wraps [fs.ErrInvalid].
func CallWith[K any](m *Module, g *autograd.Graph, k K, in ...*autograd.Var) *autograd.Var {
	if err := takes[K](m); err != nil {
		return g.Fail(m.kind.String(), err)
	}
	return m.call(g, k, in)
}

// PreHookWith is a [PreHook] that also gets the named arguments of the call. It may change
// them: k is the call's own copy, which goes on to the next hook and to the forward function.
type PreHookWith[K any] func(m *Module, g *autograd.Graph, in []*autograd.Var, k *K) ([]*autograd.Var, error)

// BeforeForwardWith is [Module.BeforeForward] for a hook that gets the named arguments. If
// the module was not made by [NewWith] for K, that is its error, [Module.Err].
func BeforeForwardWith[K any](m *Module, at Order, h PreHookWith[K]) (remove func()) {
	if err := takes[K](m); err != nil {
		m.fail(err)
		return func() {}
	}
	return m.before.add(at, func(m *Module, g *autograd.Graph, in []*autograd.Var, k any) ([]*autograd.Var, any, error) {
		args, _ := k.(K)
		in, err := h(m, g, in, &args)
		return in, args, err
	})
}

// takes returns an error unless the forward function of m takes a K.
func takes[K any](m *Module) error {
	switch want := reflect.TypeFor[K](); m.keywords.of {
	case want:
		return nil
	case nil:
		return fmt.Errorf("named arguments %v for a module that takes none; make it by NewWith: %w", want, fs.ErrInvalid)
	default:
		return fmt.Errorf("named arguments %v for a module that takes %v: %w", want, m.keywords.of, fs.ErrInvalid)
	}
}
