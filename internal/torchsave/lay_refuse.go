package torchsave

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// allow reports whether a name may be written: those of our calls, of which
// refuses has seen who made them, and those that the caller allows.
func (w *tensorWriter) allow(module, name string) bool {
	if makesTensor(module, name) || isStorage(module, name) || w.more(module, name) {
		return true
	}
	_, err := tensor.ParseDType(name)
	return module == "torch" && err == nil
}

// makesTensor reports whether a name is one of PyTorch's functions that make
// the tensors that are written here.
func makesTensor(module, name string) bool {
	return module == "torch._utils" && (name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3" || name == "_rebuild_parameter")
}

func isStorage(module, name string) bool {
	_, _, ok := storageType(thing(module, name))
	return ok
}

// refuses reports whether an object is a storage, or a tensor, that was not made
// here: PyTorch could not load what would be written. The error is w.err then.
func (w *tensorWriter) refuses(o *value.Object) bool {
	if o == nil || w.own[o] || w.more(o.Module, o.Name) {
		return false
	}
	switch {
	case makesTensor(o.Module, o.Name):
		w.fail(fmt.Errorf("%w: %w: %s of %s", ErrValue, pickle.ErrUnknownClass, o.QualifiedName(), unknownTensor(o)))
	case o.Call && isStorage(o.Module, o.Name):
		w.fail(fmt.Errorf("%w: %w: the storage %s, which is no tensor", ErrValue, pickle.ErrUnknownClass, o.QualifiedName()))
	default:
		return false
	}
	return true
}

// unknownTensor says what the call makes that no tensor was made of.
func unknownTensor(o *value.Object) string {
	for _, a := range o.Args {
		switch a, _ := a.(*value.Object); {
		case a == nil:
		case makesTensor(a.Module, a.Name) && a.Call: // a parameter of it
			return unknownTensor(a)
		case a.Module == "torch" && !a.Call && !isStorage(a.Module, a.Name):
			return "a tensor of a type that is not known here, " + a.QualifiedName()
		}
	}
	return "a tensor of a kind that is not known here"
}
