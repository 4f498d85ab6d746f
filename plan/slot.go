package plan

import (
	"reflect"
	"sync"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Slot is a place in the state of a load. LoadSetup.State has a Slot for each value
// that is not a tensor. A planner may move it to another name or into another map;
// the loaded value goes to its place in the caller's state.
type Slot struct {
	mu    *sync.Mutex // held while state is changed; all slots of a state share it
	state State
	name  string
	value any
}

// Value returns what the state holds: a value, or a map or list of values and
// tensors.
func (s *Slot) Value() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// Set replaces it. It is safe for concurrent use.
func (s *Slot) Set(v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.state[s.name] = v, v
}

// assign is Set for flattening, which may meet typed containers that refuse.
func (s *Slot) assign(v any) error {
	s.Set(v)
	return nil
}

// Slots returns a new map with the names of s. It holds the tensors of s, and a
// [Slot] for each other value. The maps and lists inside are those of s: a planner
// that renames keys of a nested map calls Slots for that map.
func Slots(s State) State {
	out := make(State, len(s))
	mu := new(sync.Mutex)
	for name, v := range s {
		switch v.(type) {
		case *tensor.Tensor, Checkpointable:
			out[name] = v
		default:
			out[name] = &Slot{mu, s, name, v}
		}
	}
	return out
}

// Bind returns the setup that a planner receives for s: its state consists of
// [Slots], and [DefaultLoad] refuses values that are not in a slot.
func (s LoadSetup) Bind() LoadSetup {
	s.State, s.bound = Slots(s.State), true
	return s
}

// Unbind copies to s the values that a planner has assigned in bound in place of a
// slot or a tensor. bound is the state that [LoadSetup.Bind] made of s.
func Unbind(s, bound State) {
	for name, v := range bound {
		if _, ok := v.(*Slot); !ok {
			s[name] = v
		}
	}
}

// enter returns the value in an interface or a Slot, and the innermost slot that
// it is in, if any.
func enter(v reflect.Value) (reflect.Value, *Slot) {
	var in *Slot
	for {
		switch {
		case v.Kind() == reflect.Interface:
			v = v.Elem()
		case v.Kind() == reflect.Pointer && v.Type() == reflect.TypeFor[*Slot]() && !v.IsNil():
			in = v.Interface().(*Slot)
			v = reflect.ValueOf(in.Value())
		default:
			return v, in
		}
	}
}

// inside is enter without the slot.
func inside(v reflect.Value) reflect.Value {
	v, _ = enter(v)
	return v
}
