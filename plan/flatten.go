package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// MaxDepth bounds how deep a state may be nested.
const MaxDepth = 256

// leaf is one value of a state, with its place.
type leaf struct {
	fqn   string
	path  meta.Path
	value any
	// set replaces the value where it stands.
	set func(v any) error
}

// flatten opens the maps and lists of a state and returns its leaves in the
// order of their names. A map with string keys is always opened, so an empty
// one vanishes; a list is opened only if a tensor or a map is somewhere inside,
// and is a leaf otherwise.
func flatten(s State) ([]leaf, error) {
	f := flattener{seen: map[string]meta.Path{}}
	if err := f.visitMap(nil, reflect.ValueOf(s)); err != nil {
		return nil, err
	}
	slices.SortFunc(f.out, func(a, b leaf) int { return strings.Compare(a.fqn, b.fqn) })
	return f.out, nil
}

// shallow returns the top-level values of a state as leaves without paths.
func shallow(s State) []leaf {
	out := make([]leaf, 0, len(s))
	for _, k := range slices.Sorted(maps.Keys(s)) {
		out = append(out, leaf{fqn: k, value: s[k], set: func(v any) error { s[k] = v; return nil }})
	}
	return out
}

type flattener struct {
	out  []leaf
	seen map[string]meta.Path
}

func (f *flattener) visitMap(at meta.Path, m reflect.Value) error {
	if err := checkDepth(at); err != nil {
		return err
	}
	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		set := func(v any) error {
			rv, err := assignable(v, m.Type().Elem())
			if err == nil {
				m.SetMapIndex(k, rv)
			}
			return err
		}
		if err := f.visit(append(slices.Clip(at), meta.Key(k.String())), m.MapIndex(k), set); err != nil {
			return err
		}
	}
	return nil
}

func (f *flattener) visitList(at meta.Path, l reflect.Value) error {
	if err := checkDepth(at); err != nil {
		return err
	}
	for i := range l.Len() {
		set := func(v any) error {
			rv, err := assignable(v, l.Type().Elem())
			if err == nil {
				l.Index(i).Set(rv)
			}
			return err
		}
		if err := f.visit(append(slices.Clip(at), meta.Pos(i)), l.Index(i), set); err != nil {
			return err
		}
	}
	return nil
}

func (f *flattener) visit(at meta.Path, v reflect.Value, set func(any) error) error {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	switch {
	case isMap(v):
		return f.visitMap(at, v)
	case isList(v) && opens(v, 0):
		return f.visitList(at, v)
	}
	fqn := at.FQN()
	if other, dup := f.seen[fqn]; dup {
		return fmt.Errorf("%w: %v and %v are both called %q", ErrState, []meta.Step(other), []meta.Step(at), fqn)
	}
	f.seen[fqn] = at
	l := leaf{fqn: fqn, path: at, set: set}
	if v.IsValid() {
		l.value = v.Interface()
	}
	f.out = append(f.out, l)
	return nil
}

func checkDepth(at meta.Path) error {
	if len(at) >= MaxDepth {
		return fmt.Errorf("%w: %q… is nested deeper than %d", ErrState, at[:8].FQN(), MaxDepth)
	}
	return nil
}

func isMap(v reflect.Value) bool {
	return v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String && !isTensor(v)
}

func isList(v reflect.Value) bool { return v.Kind() == reflect.Slice && !isTensor(v) }

// isTensor reports whether v is a leaf whatever its kind: a caller's sharded
// type may well be a map or a slice underneath.
func isTensor(v reflect.Value) bool {
	switch v.Interface().(type) {
	case *tensor.Tensor, Checkpointable, unset:
		return true
	}
	return false
}

// opens reports whether a list holds a tensor or a map at any depth.
func opens(l reflect.Value, depth int) bool {
	if depth > MaxDepth {
		return true // the caller's depth check refuses it
	}
	switch l.Type().Elem().Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Slice, reflect.Map, reflect.Struct:
	default:
		return false // numbers and strings hold nothing
	}
	for i := range l.Len() {
		e := l.Index(i)
		for e.Kind() == reflect.Interface {
			e = e.Elem()
		}
		if !e.IsValid() {
			continue
		}
		if isTensor(e) || isMap(e) || isList(e) && opens(e, depth+1) {
			return true
		}
	}
	return false
}

// assignable returns v as a value of type t.
func assignable(v any, t reflect.Type) (reflect.Value, error) {
	if v == nil {
		return reflect.Zero(t), nil
	}
	rv := reflect.ValueOf(v)
	if !rv.Type().AssignableTo(t) {
		return rv, fmt.Errorf("%w: a %T cannot be stored in a container of %v", ErrMismatch, v, t)
	}
	return rv, nil
}
