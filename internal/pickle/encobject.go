package pickle

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/value"
)

// object writes a name or a call.
func (e *encoder) object(o *value.Object, id identity, depth int) error {
	if o == nil {
		e.b = append(e.b, opNone)
		return nil
	}
	delete(e.seen, id) // a name contains nothing, a call marks itself below
	if !o.Call {
		return e.name(o)
	}
	e.seen[id] = open
	raw, err := denormal(o)
	if err != nil {
		return err
	}
	if raw != o { // a form of our own making, whose names need no permission
		return e.call(raw, id, depth)
	}
	if err := e.permit(o.Module, o.Name); err != nil {
		return err
	}
	return e.call(o, id, depth)
}

// permit returns an error unless the name may be written.
func (e *encoder) permit(module, name string) error {
	if Known(module, name) || e.o.Allow != nil && e.o.Allow(module, name) {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnknownClass, (&value.Object{Module: module, Name: name}).QualifiedName())
}

// name writes what a name stands for.
func (e *encoder) name(o *value.Object) error {
	if o.Module == "torch" && layouts[o.Name] {
		return e.reduce("torch.serialization", "_get_layout", "torch."+o.Name)
	}
	if err := e.permit(o.Module, o.Name); err != nil {
		return err
	}
	return e.global(o.Module, o.Name)
}

// call writes a call and what was done to its result.
func (e *encoder) call(o *value.Object, id identity, depth int) error {
	if err := e.invoke(o, depth); err != nil {
		return err
	}
	n := e.put()
	if err := e.appends(o.Items, depth); err != nil {
		return err
	}
	if err := e.setItems(o.Pairs, depth); err != nil {
		return err
	}
	if o.State != nil {
		if err := e.value(o.State, depth+1); err != nil {
			return err
		}
		e.b = append(e.b, opBuild)
	}
	e.done(id, n)
	return nil
}

// invoke writes the call itself.
func (e *encoder) invoke(o *value.Object, depth int) error {
	if len(o.Kwargs) > 0 {
		return e.invokeNamed(o, depth)
	}
	if err := e.global(o.Module, o.Name); err != nil {
		return err
	}
	if err := e.tuple(o.Args, identity{}, depth); err != nil {
		return err
	}
	op := byte(opReduce)
	if o.New {
		op = opNewObj
	}
	e.b = append(e.b, op)
	return nil
}

// invokeNamed writes a call with named arguments, which only __new__ can have.
func (e *encoder) invokeNamed(o *value.Object, depth int) error {
	if !o.New {
		return fmt.Errorf("%w: %s called with named arguments", ErrUnsupported, o.QualifiedName())
	}
	if e.o.Protocol < 4 {
		if err := e.global("copyreg", "__newobj_ex__"); err != nil {
			return err
		}
	}
	if err := e.global(o.Module, o.Name); err != nil {
		return err
	}
	if err := e.tuple(o.Args, identity{}, depth); err != nil {
		return err
	}
	if err := e.stringMap(o.Kwargs, identity{}, depth); err != nil {
		return err
	}
	if e.o.Protocol < 4 {
		e.b = append(e.b, opTuple3, opReduce)
		return nil
	}
	e.b = append(e.b, opNewObjEx)
	return nil
}

// denormal returns an object in the form that Python pickles it in, or o itself
// where the two forms are one.
func denormal(o *value.Object) (*value.Object, error) {
	switch {
	case o.Module == "datetime":
		return packDateTime(o)
	case o.Module == "numpy":
		return packNumpy(o)
	}
	return o, nil
}

func badForm(o *value.Object) error {
	return fmt.Errorf("%w: a %s with these arguments", ErrUnsupported, o.QualifiedName())
}
