package value

import "maps"

// The types below stand for values of Python that Go has no type for. A list of Python is a
// []any, a dict by strings a map[string]any, an int an int64, uint64 or *big.Int, a complex
// number a complex128, bytes are a []byte, and a tensor inside of a value is a
// *tensor.Tensor. A str is a string in UTF-8; the surrogates that a str of Python may hold,
// and Unicode text may not, are in it as three bytes each, as Python's error handler
// "surrogatepass" writes them.

// Tuple is a tuple of Python.
type Tuple []any

// Pair is a key of a dict and its value.
type Pair struct {
	Key, Value any
}

// Dict is a dict of Python that is not a map[string]any: one with other keys than
// strings, or one that promises an order. Dicts inside of the attributes of an object are
// read as a Dict if their keys are not sorted: the order of a module's children counts.
type Dict struct {
	// Pairs are in the order of their insertion. No key is there twice.
	Pairs []Pair
	// Ordered says that it is a collections.OrderedDict.
	Ordered bool
}

// Set is a set of Python.
type Set struct {
	// Items are in the order in which they were stored.
	Items []any
	// Frozen says that it is a frozenset.
	Frozen bool
}

// Object is an object of Python that was stored by the name of its class or of
// a function that makes it: torch.bfloat16, torch.Size([3, 4]), a datetime, or
// an instance of a class. It is only a description: no package looks up the name
// or calls anything.
type Object struct {
	// Module and Name are the names of the class, or function, or thing itself.
	Module, Name string
	// Call says that the object is the result of calling the name with Args.
	// Otherwise it is the named thing itself, such as torch.bfloat16, and
	// everything below is empty.
	Call bool
	// New says that Args were arguments of the class's __new__ rather than of a
	// call. Only writers of pickles need it.
	New  bool
	Args Tuple
	// Kwargs are the arguments with names.
	Kwargs map[string]any
	// State is the state that the object received after it was made, or nil.
	State any
	// Items were appended to the object, and Pairs were set in it.
	Items []any
	Pairs []Pair
}

// QualifiedName returns the module and the name with a dot between them.
func (o *Object) QualifiedName() string {
	if o.Module == "" {
		return o.Name
	}
	return o.Module + "." + o.Name
}

// Attributes returns the attributes that the object received as its state, such as the
// arguments of an argparse.Namespace. It is empty for a state that is not a dict of
// attributes. The state of a class with slots is a tuple of two dicts.
func (o *Object) Attributes() map[string]any {
	out := map[string]any{}
	parts, ok := o.State.(Tuple)
	if !ok {
		parts = Tuple{o.State}
	}

	for _, p := range parts {
		switch p := p.(type) {
		case map[string]any:
			maps.Copy(out, p)
		case *Dict:
			for _, pair := range p.Pairs {
				if k, ok := pair.Key.(string); ok {
					out[k] = pair.Value
				}
			}
		}
	}

	return out
}

// Ref stands for a tensor that a value holds and that is stored beside it, under
// a name of its own. Values of torch.save files refer to their tensors in this
// way, so that reading the object does not read a large model.
type Ref struct {
	// FQN is the name of the tensor in the checkpoint.
	FQN string
}
