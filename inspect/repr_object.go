package inspect

import (
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// renderer adds what Python's repr says of an object that a known class or
// function makes. It adds nothing and returns false where the record is not what
// Python would have stored; the object is then shown as the record it is.
type renderer func(r *reprer, o *value.Object) bool

// rendererOf returns the renderer of what o calls, or nil.
func rendererOf(o *value.Object) renderer {
	switch o.Module {
	case "torch":
		return torchClass(o.Name)
	case "datetime":
		return timeClass(o.Name)
	case "collections":
		return collectionClass(o.Name)
	case "builtins":
		return builtinClass(o.Name)
	case "pathlib":
		return pathClass(o.Name)
	case "numpy":
		return numpyClass(o.Name)
	}
	switch o.QualifiedName() {
	case "decimal.Decimal":
		return (*reprer).decimal
	case "uuid.UUID":
		return (*reprer).uuid
	case "fractions.Fraction":
		return (*reprer).fraction
	}
	return nil
}

// object adds an object. One that is known by its name alone is a thing.
func (r *reprer) object(o *value.Object) {
	if !o.Call {
		r.thing(o)
		return
	}
	if f := rendererOf(o); f == nil || !f(r, o) {
		r.record(o)
	}
}

// record adds an object as what was stored of it.
func (r *reprer) record(o *value.Object) {
	r.text("<" + o.QualifiedName() + " object")
	sep := ": "
	part := func(there bool, add func()) {
		if there && !r.full() {
			r.text(sep)
			sep = ", "
			add()
		}
	}
	part(len(o.Args) > 0, func() { r.tuple(o.Args) })
	part(len(o.Kwargs) > 0, func() { r.dict(o.Kwargs) })
	part(o.State != nil, func() { r.value(o.State) })
	part(len(o.Items) > 0, func() { r.seq("[", o.Items, "]") })
	part(len(o.Pairs) > 0, func() { r.pairs(o.Pairs) })
	r.text(">")
}

// objectType returns the name of an object's class.
func objectType(o *value.Object) string {
	if !o.Call {
		return thingType(o)
	}
	if t, ok := numpyType(o); ok {
		return t
	}
	return o.Name[strings.LastIndexByte(o.Name, '.')+1:]
}

// thing adds what a name stands for.
func (r *reprer) thing(o *value.Object) {
	name := o.QualifiedName()
	if o.Module == "builtins" {
		name = o.Name
	}
	switch thingType(o) {
	case "type":
		r.text("<class '" + name + "'>")
	case "global":
		r.text("<" + o.QualifiedName() + ">")
	default:
		r.text(name)
	}
}

// thingType returns the type of what a name stands for.
func thingType(o *value.Object) string {
	switch {
	case o.Module == "torch":
		return torchThing(o.Name)
	case o.Module == "builtins":
		return builtinThing(o.Name)
	case rendererOf(o) != nil || o.Module == "collections" && o.Name == "OrderedDict":
		return "type"
	}
	return "global"
}

var builtinTypes = []string{
	"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "range", "set",
	"slice", "str", "tuple", "type",
}

func builtinThing(name string) string {
	switch {
	case name == "Ellipsis":
		return "ellipsis"
	case name == "NotImplemented":
		return "NotImplementedType"
	case slices.Contains(builtinTypes, name):
		return "type"
	}
	return "global"
}

var (
	layouts       = []string{"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "jagged"}
	memoryFormats = []string{"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"}
	qschemes      = []string{
		"per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric", "per_channel_affine_float_qparams",
	}
	// oddDTypes are PyTorch's dtypes beyond those of package tensor.
	oddDTypes = []string{
		"quint8", "qint8", "qint32", "quint4x2", "quint2x4", "complex32", "bcomplex32", "float4_e2m1fn_x2",
		"bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
		"uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2", "int3", "int4", "int5", "int6", "int7",
	}
)

func torchThing(name string) string {
	d, err := tensor.ParseDType(name)
	switch {
	case err == nil && d.String() == name, slices.Contains(oddDTypes, name):
		return "dtype"
	case slices.Contains(layouts, name):
		return "layout"
	case slices.Contains(memoryFormats, name):
		return "memory_format"
	case slices.Contains(qschemes, name):
		return "qscheme"
	case torchClass(name) != nil:
		return "type"
	}
	return "global"
}

// hasContents reports whether anything was done to an object after the call
// that made it.
func hasContents(o *value.Object) bool {
	return o.State != nil || len(o.Items) > 0 || len(o.Pairs) > 0
}

// onlyArgs reports whether o is a call with positional arguments and nothing
// else.
func onlyArgs(o *value.Object) bool { return len(o.Kwargs) == 0 && !hasContents(o) }

// only returns the one argument of a call, if it is a T and there is nothing
// else.
func only[T any](o *value.Object) (T, bool) {
	if len(o.Args) != 1 || !onlyArgs(o) {
		var none T
		return none, false
	}
	v, ok := o.Args[0].(T)
	return v, ok
}
