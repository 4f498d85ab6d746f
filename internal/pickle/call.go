package pickle

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/value"
)

// object returns what became of a call: what the caller's own function made of
// it, a plain value, or an inert record.
func (b *builder) object(n *object, depth int) (any, int64, error) {
	g := &b.globals[n.global]
	o := &value.Object{Module: g.module, Name: g.name, Call: true, New: n.isNew}
	if err := b.charge(valueObject); err != nil {
		return nil, 0, err
	}
	cost, err := b.arguments(o, n, depth)
	if err != nil {
		return nil, 0, err
	}
	redirect(o)
	f, err := b.constructOf(o, n.global)
	if err != nil {
		return nil, 0, err
	}
	if f != nil {
		v, err := b.construct(f, o, n)
		b.refund(valueObject)
		return v, cost, err
	}
	more, err := b.contents(o, n, depth)
	if err != nil {
		return nil, 0, err
	}
	if cost += more; cost > b.lim.Bytes {
		return nil, 0, b.tooLarge()
	}
	v, err := b.normal(o)
	if v != any(o) {
		b.refund(valueObject)
	}
	return v, cost, err
}

// constructOf returns the caller's function for calls of the name global, or nil.
func (b *builder) constructOf(o *value.Object, global int32) (Construct, error) {
	if g := &b.globals[global]; o.Module != g.module || o.Name != g.name {
		return b.o.Construct[o.QualifiedName()], b.charge(len(o.Module) + len(o.Name))
	}
	f, ok := b.constructs[global]
	if !ok {
		f = b.o.Construct[o.QualifiedName()]
		b.constructs[global] = f
	}
	return f, nil
}

func (b *builder) construct(f Construct, o *value.Object, n *object) (any, error) {
	if n.more != nil || n.built && n.state != cellNone {
		return nil, fmt.Errorf("%w: %s with a state of its own", ErrUnsupported, o.QualifiedName())
	}
	if err := b.charge(foreign); err != nil {
		return nil, err
	}
	v, err := f(o.Args, o.Kwargs)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.QualifiedName(), err)
	}
	return v, nil
}

// arguments sets the arguments of o and returns their cost.
func (b *builder) arguments(o *value.Object, n *object, depth int) (int64, error) {
	args, cost, err := b.value(n.args, depth)
	if err != nil {
		return 0, err
	}
	if t := args.(value.Tuple); len(t) > 0 {
		o.Args = t
	}
	if n.kwargs == cellNone {
		return cost, nil
	}
	kw, more, err := b.value(n.kwargs, depth)
	if err != nil {
		return 0, err
	}
	m, ok := kw.(map[string]any)
	if !ok {
		return 0, fmt.Errorf("%w: %s called with names that are no strings", ErrMalformed, o.QualifiedName())
	}
	if len(m) > 0 {
		o.Kwargs = m
	}
	return cost + more, nil
}

// contents sets what was done to o after the call, and returns its cost.
func (b *builder) contents(o *value.Object, n *object, depth int) (int64, error) {
	var total int64
	if n.built {
		v, cost, err := b.value(n.state, depth)
		if err != nil {
			return 0, err
		}
		o.State, total = v, cost
	}
	if n.more == nil {
		return total, nil
	}
	if n.more.items != nil {
		v, cost, err := b.values(n.more.items, depth)
		if err != nil {
			return 0, err
		}
		o.Items, total = v, total+cost
	}
	if n.more.pairs != nil {
		v, cost, err := b.values(n.more.pairs, depth)
		if err != nil {
			return 0, err
		}
		if o.Pairs, err = b.keys.pairs(v); err != nil {
			return 0, err
		}
		total += cost
	}
	return total, nil
}

// redirect turns a call of one of the functions that only make an object of a
// class into that object.
func redirect(o *value.Object) {
	if o.Module != "copyreg" || o.New || len(o.Args) == 0 {
		return
	}
	class, ok := o.Args[0].(*value.Object)
	if !ok || class.Call {
		return
	}
	switch {
	case o.Name == "__newobj__":
		o.Args = o.Args[1:]
	case o.Name == "__newobj_ex__" && len(o.Args) == 3:
		args, ok := o.Args[1].(value.Tuple)
		kwargs, ok2 := o.Args[2].(map[string]any)
		if !ok || !ok2 {
			return
		}
		o.Args, o.Kwargs = args, kwargs
	case o.Name == "_reconstructor" && len(o.Args) == 3 && isName(o.Args[1], "builtins", "object") && o.Args[2] == nil:
		o.Args = nil
	default:
		return
	}
	o.Module, o.Name, o.New = class.Module, class.Name, true
	if len(o.Args) == 0 {
		o.Args = nil
	}
	if len(o.Kwargs) == 0 {
		o.Kwargs = nil
	}
}

// isName reports whether v is what that name stands for.
func isName(v any, module, name string) bool {
	o, ok := v.(*value.Object)
	return ok && !o.Call && o.Module == module && o.Name == name
}
