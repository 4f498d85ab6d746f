package platform

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// maxDepth bounds how deep the functions that walk through nested values go, also if a
// value contains itself.
const maxDepth = 256

// MapLeaves returns a copy of tree with fn's results in place of its leaves. It does
// not change the tree.
//
// It opens maps, slices, arrays, structs and pointers to structs of a type that can hold a
// tensor somewhere, including Tuple, Dict, Set and Object of package value. It keeps keys and
// unexported fields. Everything else is a leaf, such as a []float32 or a string. Maps by
// strings are walked in the order of their keys, other maps in any order.
//
// A result must be assignable to the place of the leaf. Errors contain the place.
func MapLeaves(tree any, fn func(leaf any) (any, error)) (any, error) {
	w := walker{fn: func(_ []string, leaf any) (any, error) { return fn(leaf) }}
	return w.walkAny(nil, tree)
}

// MapTensors is [MapLeaves] for the tensors of a tree: all other leaves are kept
// as they are. A leaf that holds a tensor inside, in fields that are not exported, is an
// error that wraps [value.ErrValue], because fn would not see that tensor: a share of a
// sharded tensor for example, a variable or a module.
func MapTensors(tree any, fn func(t *tensor.Tensor) (*tensor.Tensor, error)) (any, error) {
	w := walker{strict: true, fn: func(_ []string, leaf any) (any, error) {
		if t, ok := leaf.(*tensor.Tensor); ok && t != nil {
			return fn(t)
		}
		return leaf, nil
	}}
	return w.walkAny(nil, tree)
}

// Tensors returns the tensors of a tree, as far as [MapLeaves] opens it, by their names: the
// keys, fields and positions on the way, joined by dots, as a checkpoint calls them. Two of
// one name are an error, and so is a leaf that holds a tensor inside, as for [MapTensors].
// Save such a tree by package cairn, which writes the shares of all ranks.
func Tensors(tree any) (map[string]*tensor.Tensor, error) {
	out := map[string]*tensor.Tensor{}
	w := walker{strict: true, fn: func(at []string, leaf any) (any, error) {
		t, ok := leaf.(*tensor.Tensor)
		if !ok || t == nil {
			return leaf, nil
		}

		name := strings.Join(at, ".")
		if out[name] != nil {
			return nil, fmt.Errorf("a second tensor of that name: %w", value.ErrValue)
		}

		out[name] = t
		return leaf, nil
	}}
	if _, err := w.walkAny(nil, tree); err != nil {
		return nil, err
	}
	return out, nil
}

// walker copies a tree.
type walker struct {
	fn     func(at []string, leaf any) (any, error)
	depth  int  // of containers, which need not be steps
	strict bool // refuses leaves that hold tensors inside
}

func (w *walker) walkAny(at []string, tree any) (any, error) {
	v := reflect.ValueOf(&tree).Elem()
	out, err := w.walk(at, v)
	if err != nil {
		return nil, err
	}
	return out.Interface(), nil
}

// walk returns the copy of v, as a value that can be set where v was.
func (w *walker) walk(at []string, v reflect.Value) (reflect.Value, error) {
	w.depth++
	defer func() { w.depth-- }()

	if len(at) > maxDepth || w.depth > 4*maxDepth { // a dict, its pairs, a pair and its value are one step
		return v, fmt.Errorf("%s…: nested deeper than %d: %w", place(at[:min(len(at), 8)]), maxDepth, value.ErrValue)
	}

	slot := v.Type()
	for v.Kind() == reflect.Interface && !v.IsNil() {
		v = v.Elem()
	}

	if opens(v) {
		return w.open(at, v)
	}
	if err := w.check(at, v); err != nil {
		return v, err
	}

	leaf, err := w.fn(at, v.Interface())
	if err != nil {
		return v, fmt.Errorf("%s: %w", place(at), err)
	}
	return fit(at, leaf, slot)
}

// check returns an error if the walker is strict and the leaf v holds a tensor inside.
func (w *walker) check(at []string, v reflect.Value) error {
	if !w.strict || !v.IsValid() || v.Type() == tensorType {
		return nil
	}

	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
	case reflect.Map, reflect.Slice:
		if v.Len() == 0 {
			return nil
		}
	}

	switch {
	case v.Type() == reflect.TypeFor[*shard.Tensor]():
		return fmt.Errorf("%s: a share of a sharded tensor, not a whole one: save it by package cairn, or redistribute it to a replicated layout first: %w", place(at), value.ErrValue)
	case searchType(v.Type(), true, map[reflect.Type]bool{}):
		return fmt.Errorf("%s: a %v holds a tensor that is not exported and would be left out: pass the tensor itself: %w", place(at), v.Type(), value.ErrValue)
	}

	return nil
}

// open copies a container.
func (w *walker) open(at []string, v reflect.Value) (reflect.Value, error) {
	switch v.Kind() {
	case reflect.Map:
		return w.openMap(at, v)
	case reflect.Slice, reflect.Array:
		return w.openList(at, v)
	case reflect.Pointer:
		elem, err := w.openStruct(at, v.Elem())
		return elem.Addr(), err
	}
	return w.openStruct(at, v)
}

func (w *walker) openMap(at []string, v reflect.Value) (reflect.Value, error) {
	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	type entry struct{ key, value reflect.Value }
	entries := make([]entry, 0, v.Len())
	for it := v.MapRange(); it.Next(); { // a NaN is a key that cannot be looked up
		entries = append(entries, entry{it.Key(), it.Value()})
	}

	if v.Type().Key().Kind() == reflect.String {
		slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key.String(), b.key.String()) })
	}

	for _, x := range entries {
		e, err := w.walk(step(at, fmt.Sprint(x.key)), slotOf(x.value, v.Type().Elem()))
		if err != nil {
			return v, err
		}
		out.SetMapIndex(x.key, e)
	}

	return out, nil
}

func (w *walker) openList(at []string, v reflect.Value) (reflect.Value, error) {
	out := reflect.New(v.Type()).Elem()
	if v.Kind() == reflect.Slice {
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
	}

	for i := range v.Len() {
		e, err := w.walk(step(at, listStep(v, i)), v.Index(i))
		if err != nil {
			return v, err
		}
		out.Index(i).Set(e)
	}

	return out, nil
}

func (w *walker) openStruct(at []string, v reflect.Value) (reflect.Value, error) {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() || v.Type() == pairType && f.Name == "Key" {
			continue
		}
		if !canHold(f.Type) {
			if err := w.check(step(at, f.Name), v.Field(i)); err != nil {
				return out, err
			}
			continue
		}

		next := at // the pairs of a dict, and the value of a pair, are not steps
		if v.Type() != pairType && f.Type != pairsType {
			next = step(at, f.Name)
		}

		e, err := w.walk(next, v.Field(i))
		if err != nil {
			return out, err
		}
		out.Field(i).Set(e)
	}

	return out, nil
}

var (
	tensorType = reflect.TypeFor[*tensor.Tensor]()
	pairType   = reflect.TypeFor[value.Pair]()
	pairsType  = reflect.TypeFor[[]value.Pair]()
)

// listStep returns the name of an element: its position, or the key of a pair.
func listStep(v reflect.Value, i int) string {
	if p, ok := v.Index(i).Interface().(value.Pair); ok {
		return fmt.Sprint(p.Key)
	}
	return fmt.Sprint(i)
}

// slotOf returns v as a value of the static type t, so that walk knows which results fit.
func slotOf(v reflect.Value, t reflect.Type) reflect.Value {
	s := reflect.New(t).Elem()
	s.Set(v)
	return s
}

// opens reports whether v is a container.
func opens(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return !v.IsNil() && canHold(v.Type())
	case reflect.Pointer:
		return !v.IsNil() && v.Type() != tensorType && v.Type().Elem().Kind() == reflect.Struct && canHold(v.Type())
	case reflect.Array, reflect.Struct:
		return canHold(v.Type())
	}
	return false
}

// canHold reports whether a value of the type can hold a tensor somewhere.
func canHold(t reflect.Type) bool { return searchType(t, false, map[reflect.Type]bool{}) }

// searchType is canHold for a type inside of the types in seen. If hidden is set, it looks
// for tensors themselves, also in fields that are not exported.
func searchType(t reflect.Type, hidden bool, seen map[reflect.Type]bool) bool {
	if t == tensorType {
		return true
	}
	if seen[t] {
		return false
	}

	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return !hidden && (t.NumMethod() == 0 || tensorType.Implements(t))
	case reflect.Map, reflect.Slice, reflect.Array:
		return searchType(t.Elem(), hidden, seen)
	case reflect.Pointer:
		return t.Elem().Kind() == reflect.Struct && searchType(t.Elem(), hidden, seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if (hidden || f.IsExported()) && searchType(f.Type, hidden, seen) {
				return true
			}
		}
	}

	return false
}

// fit returns v as a value that a place of type t takes.
func fit(at []string, v any, t reflect.Type) (reflect.Value, error) {
	rv := reflect.ValueOf(v)
	if v == nil {
		switch t.Kind() {
		case reflect.Interface, reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
			return reflect.Zero(t), nil
		}
	}

	if v == nil || !rv.Type().AssignableTo(t) {
		return rv, fmt.Errorf("%s: a %T does not fit a %v: %w", place(at), v, t, value.ErrValue)
	}

	out := reflect.New(t).Elem()
	out.Set(rv)
	return out, nil
}

func place(at []string) string {
	if len(at) == 0 {
		return "value"
	}
	return fmt.Sprintf("%q", strings.Join(at, "."))
}

// step returns the path of the child name, in memory of its own.
func step(at []string, name string) []string { return append(slices.Clip(at), name) }
