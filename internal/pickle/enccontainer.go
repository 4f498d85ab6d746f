package pickle

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"unsafe"

	"github.com/cairn-ckpt/cairn/value"
)

// identity is what two references to one container have in common.
type identity struct {
	at   unsafe.Pointer
	len  int
	kind byte
}

// identify returns the identity of a container that may be shared, or false.
func identify(v any) (identity, bool) {
	switch v := v.(type) {
	case []any:
		return identity{unsafe.Pointer(unsafe.SliceData(v)), len(v), 'l'}, len(v) > 0
	case value.Tuple:
		return identity{unsafe.Pointer(unsafe.SliceData(v)), len(v), 't'}, len(v) > 0
	case map[string]any:
		return identity{reflect.ValueOf(v).UnsafePointer(), 0, 'm'}, v != nil
	case *value.Dict:
		return identity{unsafe.Pointer(v), 0, 'd'}, v != nil
	case *value.Set:
		return identity{unsafe.Pointer(v), 0, 's'}, v != nil
	case *value.Object:
		return identity{unsafe.Pointer(v), 0, 'o'}, v != nil
	}
	return identity{}, false
}

// batch is how many items Python puts between two marks.
const batch = 1000

func (e *encoder) tuple(t []any, id identity, depth int) error {
	if len(t) == 0 {
		e.b = append(e.b, opEmptyTuple)
		return nil
	}
	if len(t) > 3 {
		e.b = append(e.b, opMark)
	}
	for _, v := range t {
		if err := e.value(v, depth+1); err != nil {
			return err
		}
	}
	if len(t) > 3 {
		e.b = append(e.b, opTuple)
	} else {
		e.b = append(e.b, opTuple1+byte(len(t)-1))
	}
	if id != (identity{}) {
		e.done(id, e.put())
	}
	return nil
}

func (e *encoder) list(l []any, id identity, depth int) error {
	e.b = append(e.b, opEmptyList)
	n := e.put()
	if err := e.appends(l, depth); err != nil {
		return err
	}
	e.done(id, n)
	return nil
}

// appends writes what puts the items into the list or object on the stack.
func (e *encoder) appends(l []any, depth int) error {
	for part := range slices.Chunk(l, batch) {
		e.b = append(e.b, opMark)
		for _, v := range part {
			if err := e.value(v, depth+1); err != nil {
				return err
			}
		}
		e.b = append(e.b, opAppends)
	}
	return nil
}

func (e *encoder) stringMap(m map[string]any, id identity, depth int) error {
	e.b = append(e.b, opEmptyDict)
	n := e.put()
	p := make([]value.Pair, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		p = append(p, value.Pair{Key: k, Value: m[k]})
	}
	if err := e.setItems(p, depth); err != nil {
		return err
	}
	e.done(id, n)
	return nil
}

// setItems writes what sets the items in the dict or object on the stack.
func (e *encoder) setItems(p []value.Pair, depth int) error {
	for part := range slices.Chunk(p, batch) {
		e.b = append(e.b, opMark)
		for _, kv := range part {
			if err := e.value(kv.Key, depth+1); err != nil {
				return err
			}
			if err := e.value(kv.Value, depth+1); err != nil {
				return err
			}
		}
		e.b = append(e.b, opSetItems)
	}
	return nil
}

func (e *encoder) dict(d *value.Dict, id identity, depth int) error {
	if d == nil {
		e.b = append(e.b, opNone)
		return nil
	}
	if d.Ordered {
		if err := e.reduce("collections", "OrderedDict"); err != nil {
			return err
		}
	} else {
		e.b = append(e.b, opEmptyDict)
	}
	n := e.put()
	if err := e.setItems(d.Pairs, depth); err != nil {
		return err
	}
	e.done(id, n)
	return nil
}

func (e *encoder) set(s *value.Set, id identity, depth int) error {
	if s == nil {
		e.b = append(e.b, opNone)
		return nil
	}
	if e.o.Protocol < 4 {
		return e.setByCall(s, id, depth)
	}
	n := open
	if !s.Frozen {
		e.b = append(e.b, opEmptySet)
		n = e.put()
	}
	e.b = append(e.b, opMark)
	for _, v := range s.Items {
		if err := e.value(v, depth+1); err != nil {
			return err
		}
	}
	if s.Frozen {
		e.b = append(e.b, opFrozenSet)
		n = e.put()
	} else {
		e.b = append(e.b, opAddItems)
	}
	e.done(id, n)
	return nil
}

// setByCall writes a set in the protocols that have none.
func (e *encoder) setByCall(s *value.Set, id identity, depth int) error {
	name := "set"
	if s.Frozen {
		name = "frozenset"
	}
	if err := e.global("builtins", name); err != nil {
		return err
	}
	if err := e.tuple([]any{append([]any{}, s.Items...)}, identity{}, depth); err != nil {
		return err
	}
	e.b = append(e.b, opReduce)
	e.done(id, e.put())
	return nil
}

// reflected writes Go's own numbers, slices and maps.
func (e *encoder) reflected(v any, depth int) error {
	rv := reflect.ValueOf(v)
	switch {
	case rv.CanInt():
		e.int(rv.Int())
		return nil
	case rv.CanUint():
		e.scalar(rv.Uint())
		return nil
	case rv.CanFloat():
		e.scalar(rv.Float())
		return nil
	case rv.Kind() == reflect.Slice:
		l := make([]any, rv.Len())
		for i := range l {
			l[i] = rv.Index(i).Interface()
		}
		return e.list(l, identity{}, depth)
	case rv.Kind() == reflect.Map && rv.Type().Key().Kind() == reflect.String:
		m := make(map[string]any, rv.Len())
		for k, x := range rv.Seq2() {
			m[k.String()] = x.Interface()
		}
		return e.stringMap(m, identity{}, depth)
	}
	return fmt.Errorf("%w: a value of type %T", ErrUnsupported, v)
}
