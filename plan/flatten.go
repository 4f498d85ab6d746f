package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// MaxDepth bounds how deep a state may be nested. It also ends the walk through
// a state that contains itself.
const MaxDepth = 256

// leaf is one value of a state and its position.
type leaf struct {
	fqn   string
	path  meta.Path
	value any
	// set replaces the value in its container.
	set func(v any) error
	// bound is set if the value is in a [Slot].
	bound bool
}

// flatten opens the maps and lists of a state and returns its leaves in the
// order of their names. A map with string or integer keys is opened, so an empty
// map has no leaves. A list is opened if it contains a tensor or a map at any depth;
// otherwise it is a leaf.
//
// whole, if not nil, returns true for the maps that are leaves if they contain no
// tensor. If shallow is set, the top-level values are the leaves, and they have no
// paths.
func flatten(s State, shallow bool, whole func(fqn string) bool) ([]leaf, error) {
	f := flattener{whole: whole, shallow: shallow, out: make([]leaf, 0, len(s))}
	if err := f.visitMap(nil, reflect.ValueOf(s), false); err != nil {
		return nil, err
	}

	slices.SortStableFunc(f.out, func(a, b leaf) int { return strings.Compare(a.fqn, b.fqn) })
	for i := 1; i < len(f.out); i++ {
		if a, b := &f.out[i-1], &f.out[i]; a.fqn == b.fqn {
			return nil, fmt.Errorf("%w: %v and %v have the same name %q", ErrState, []meta.Step(a.path), []meta.Step(b.path), b.fqn)
		}
	}

	return f.out, nil
}

type flattener struct {
	out     []leaf
	whole   func(fqn string) bool
	shallow bool
}

func (f *flattener) visitMap(at meta.Path, m reflect.Value, bound bool) error {
	if err := checkDepth(at); err != nil {
		return err
	}
	if s, ok := m.Interface().(State); ok { // the usual type, without reflection on each key
		for _, k := range slices.Sorted(maps.Keys(s)) {
			set := func(v any) error { s[k] = v; return nil }
			if err := f.visit(append(slices.Clip(at), meta.Key(k)), reflect.ValueOf(s[k]), set, bound); err != nil {
				return err
			}
		}
		return nil
	}

	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(keyText(a), keyText(b)) })
	for _, k := range keys {
		step := meta.Step{Key: keyText(k), Int: k.Kind() != reflect.String}
		set := setter(m.Type().Elem(), func(v reflect.Value) { m.SetMapIndex(k, v) })
		if err := f.visit(append(slices.Clip(at), step), m.MapIndex(k), set, bound); err != nil {
			return err
		}
	}

	return nil
}

func (f *flattener) visitList(at meta.Path, l reflect.Value, bound bool) error {
	if err := checkDepth(at); err != nil {
		return err
	}

	for i := range l.Len() {
		set := setter(l.Type().Elem(), l.Index(i).Set)
		if err := f.visit(append(slices.Clip(at), meta.Pos(i)), l.Index(i), set, bound); err != nil {
			return err
		}
	}

	return nil
}

// setter returns a function that calls put if the value is assignable to t.
func setter(t reflect.Type, put func(reflect.Value)) func(any) error {
	return func(v any) error {
		rv, err := assignable(v, t)
		if err == nil {
			put(rv)
		}
		return err
	}
}

func (f *flattener) visit(at meta.Path, v reflect.Value, set func(any) error, bound bool) error {
	v, in := enter(v)
	if in != nil {
		set, bound = in.Set, true
	}

	fqn := at.FQN()
	switch {
	case f.shallow:
		at = nil
	case isMap(v) && !f.isWhole(fqn, v):
		return f.visitMap(at, v, bound)
	case isList(v) && holds(v, isOpener, 0):
		return f.visitList(at, v, bound)
	}

	l := leaf{fqn: fqn, path: at, set: set, bound: bound}
	if v.IsValid() {
		l.value = v.Interface()
	}
	f.out = append(f.out, l)
	return nil
}

func (f *flattener) isWhole(fqn string, m reflect.Value) bool {
	return f.whole != nil && f.whole(fqn) && !holds(m, isTensor, 0)
}

func checkDepth(at meta.Path) error {
	if len(at) >= MaxDepth {
		return fmt.Errorf("%w: %q… is nested deeper than %d", ErrState, at[:8].FQN(), MaxDepth)
	}
	return nil
}

func isMap(v reflect.Value) bool {
	if v.Kind() != reflect.Map || isTensor(v) {
		return false
	}
	k := v.Type().Key().Kind()
	return k == reflect.String || k >= reflect.Int && k <= reflect.Uint64
}

// keyText returns the text of a key that isMap accepts.
func keyText(k reflect.Value) string {
	switch {
	case k.CanInt():
		return strconv.FormatInt(k.Int(), 10)
	case k.CanUint():
		return strconv.FormatUint(k.Uint(), 10)
	}
	return k.String()
}

// isList reports whether v is a list. A Python tuple is not a list but a value, even
// if it contains tensors, as in PyTorch.
func isList(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && v.Type() != reflect.TypeFor[value.Tuple]() && !isTensor(v)
}

// isTensor reports whether v is a leaf even if it is a map or a slice, as a caller's
// sharded type may be.
func isTensor(v reflect.Value) bool {
	switch v.Interface().(type) {
	case *tensor.Tensor, Checkpointable, unset:
		return true
	}
	return false
}

// isOpener reports whether a list that contains v is opened.
func isOpener(v reflect.Value) bool { return isTensor(v) || isMap(v) }

// holds reports whether a value inside the map or list c, at any depth, satisfies is.
// It returns true if the nesting is too deep, which the caller's depth check refuses.
func holds(c reflect.Value, is func(reflect.Value) bool, depth int) bool {
	if depth > MaxDepth {
		return true
	}

	switch c.Type().Elem().Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Slice, reflect.Map, reflect.Struct:
	default:
		return false // numbers and strings hold no tensors
	}

	for _, e := range c.Seq2() {
		if e = inside(e); !e.IsValid() {
			continue
		}
		if is(e) || (isMap(e) || isArray(e)) && holds(e, is, depth+1) {
			return true
		}
	}

	return false
}

// checkLeaf returns an error if a Go value that is not opened contains a tensor: the
// tensor would be stored as text. The types of package value are not checked.
func checkLeaf(v any) error {
	c := reflect.ValueOf(v)
	if c.Kind() == reflect.Map || isArray(c) {
		if holds(c, isTensor, 0) {
			return fmt.Errorf("%w: a tensor inside a %v, which is stored as one value", value.ErrValue, c.Type())
		}
	}
	return nil
}

func isArray(v reflect.Value) bool { return v.Kind() == reflect.Array || v.IsValid() && isList(v) }

// assignable returns v as a value of type t.
func assignable(v any, t reflect.Type) (reflect.Value, error) {
	if v == nil {
		switch t.Kind() {
		case reflect.Interface, reflect.Pointer, reflect.Map, reflect.Slice:
			return reflect.Zero(t), nil
		}
		return reflect.Value{}, fmt.Errorf("%w: nil cannot be stored in a container of %v", ErrMismatch, t)
	}

	rv := reflect.ValueOf(v)
	if !rv.Type().AssignableTo(t) {
		return rv, fmt.Errorf("%w: a %T cannot be stored in a container of %v", ErrMismatch, v, t)
	}
	return rv, nil
}

// Placeholders returns the tensors of s without memory, at any depth, by name. For
// a sharded tensor it returns the result of its method Local, if it has one, as
// shard.Tensor does. A planner that calls [tensor.Tensor.Materialize] for them in
// SetUp loads into them; otherwise saves and loads refuse them. The error wraps
// ErrState if s cannot be flattened into names.
func Placeholders(s State) (map[string]*tensor.Tensor, error) {
	leaves, err := flatten(s, false, nil)
	if err != nil {
		return nil, err
	}

	out := map[string]*tensor.Tensor{}
	for _, l := range leaves {
		v := plain(l.value)
		if local, ok := v.(interface{ Local() *tensor.Tensor }); ok && !isNil(v) {
			v = local.Local()
		}
		if t, ok := v.(*tensor.Tensor); ok && t != nil && t.IsPlaceholder() {
			out[l.fqn] = t
		}
	}

	return out, nil
}

// checkMemory returns [tensor.ErrPlaceholder] if box i of a tensor has no memory.
// An error of Part is left to the call that needs the part.
func checkMemory(v Checkpointable, i int) error {
	if t, _ := v.Part(i); t != nil && t.IsPlaceholder() {
		return tensor.ErrPlaceholder
	}
	return nil
}
