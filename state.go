package cairn

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/plan"
)

// State is the state of one rank: names to values. A value is a
// *tensor.Tensor, a sharded tensor (*shard.Tensor or any plan.Checkpointable), a
// Stateful, a nested map or list of values, or a plain Go value: number, string,
// bool, nil, []byte, lists of those, or an encoding.BinaryMarshaler.
//
// Nested maps are flattened: the keys on the path to a value, joined by dots, are
// its name. Lists are flattened too if they hold a tensor or a map at any depth.
// Any other list is one value, under one name.
//
// A name means the same thing on all ranks. A tensor that several ranks hold under
// one name is the same tensor on all of them; a plain value must be equal on all of
// them. State that belongs to one rank, such as the state of its random number
// generator, needs a name that contains the rank.
type State = plan.State

// Stateful is an object that can return its state and load it again, such as a
// model or an optimizer. It may be used at the top level of a State. Its methods
// are called in the order of the names, on every rank, so they may call
// collectives.
type Stateful interface {
	// State returns the object's state. A load fills this state.
	State() (State, error)
	// LoadState takes the state that a load has filled.
	LoadState(s State) error
}

// expand replaces the Stateful values at the top level of s by their states.
// The given map stays as it is.
func expand(s State) (out State, stateful map[string]Stateful, err error) {
	out = make(State, len(s))
	stateful = map[string]Stateful{}
	for k, v := range s {
		out[k] = v
		if o, ok := v.(Stateful); ok {
			stateful[k] = o
		}
	}
	for _, k := range slices.Sorted(maps.Keys(stateful)) {
		if out[k], err = stateful[k].State(); err != nil {
			return nil, nil, fmt.Errorf("state of %q: %w", k, err)
		}
	}
	return out, stateful, nil
}

// giveBack passes the filled states to the Stateful values, and copies the other
// values to s.
func giveBack(s, filled State, stateful map[string]Stateful) error {
	for _, k := range slices.Sorted(maps.Keys(filled)) {
		o, ok := stateful[k]
		if !ok {
			s[k] = filled[k]
			continue
		}
		inner, ok := filled[k].(State)
		if !ok {
			return fmt.Errorf("%w: %q was filled with a %T", ErrMismatch, k, filled[k])
		}
		if err := o.LoadState(inner); err != nil {
			return fmt.Errorf("state of %q: %w", k, err)
		}
	}
	return nil
}
