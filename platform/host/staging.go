package host

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Executors returns [platform.Goroutine], and [platform.Process] if this system can share
// memory with another process.
func (p *Platform) Executors() []platform.Executor {
	a, err := stage.NewShared(1 << 20)
	if err != nil {
		return []platform.Executor{platform.Goroutine}
	}
	_ = a.Close() // no copy was made in it
	return []platform.Executor{platform.Goroutine, platform.Process}
}

// NewStager returns a stager over an arena of package stage. A page of it costs memory from
// its first use on.
func (p *Platform) NewStager(ceiling int64) (platform.Stager, error) {
	a, err := stage.NewArena(ceiling)
	if err != nil {
		return nil, fmt.Errorf("platform %s: %w", Name, err)
	}
	return &stager{arena: a}, nil
}

// stager stages trees in an arena.
type stager struct {
	arena  *stage.Arena
	number atomic.Uint64 // of the last state
}

var _ platform.Stager = (*stager)(nil)

// Stage copies memory in parallel.
func (s *stager) Stage(ctx context.Context, tree any) (any, func(), error) {
	c := copier{state: plan.State{}, copies: map[*tensor.Tensor]*tensor.Tensor{}}
	out, err := platform.MapLeaves(tree, c.leaf)
	if err != nil {
		return nil, nil, err
	}

	snapshot, err := stage.New(new(plan.DefaultSave), plan.SaveSetup{State: c.state, Size: 1, Coordinator: true}, s.arena, s.number.Add(1))
	if err != nil {
		return nil, nil, err
	}

	all, err := snapshot.Fill(ctx, true, func() {})
	if err == nil && !all {
		err = fmt.Errorf("%d bytes: %w", snapshot.Bytes(), platform.ErrCeiling)
	}
	if err == nil {
		err = c.finish(snapshot)
	}
	if err != nil {
		snapshot.Close()
		return nil, nil, err
	}
	return out, snapshot.Close, nil
}

// Close frees the arena.
func (s *stager) Close() error { return s.arena.Close() }

// copier copies the leaves of a tree. The copies of tensors get their memory in finish.
type copier struct {
	state  plan.State // the tensors, by numbers
	order  []*tensor.Tensor
	copies map[*tensor.Tensor]*tensor.Tensor
}

func (c *copier) leaf(leaf any) (any, error) {
	if v := reflect.ValueOf(leaf); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return leaf, nil
	}

	switch x := leaf.(type) {
	case *tensor.Tensor:
		return c.tensor(x), nil
	case plan.Checkpointable:
		return c.sharded(x)
	}

	out, ok := copyValue(reflect.ValueOf(leaf))
	if !ok {
		return nil, fmt.Errorf("a %T cannot be copied: %w", leaf, value.ErrValue)
	}
	return out.Interface(), nil
}

func (c *copier) tensor(t *tensor.Tensor) *tensor.Tensor {
	if t.IsPlaceholder() {
		return t
	}
	if c.copies[t] == nil {
		c.state[strconv.Itoa(len(c.order))] = t
		c.copies[t] = new(tensor.Tensor)
		c.order = append(c.order, t)
	}
	return c.copies[t]
}

// sharded is a copy of a sharded tensor.
type sharded struct {
	plan.Checkpointable
	parts []*tensor.Tensor
}

func (s *sharded) Part(i int) (*tensor.Tensor, error) {
	if i < 0 || i >= len(s.parts) {
		return s.Checkpointable.Part(i) // returns the error for it
	}
	return s.parts[i], nil
}

func (c *copier) sharded(x plan.Checkpointable) (*sharded, error) {
	out := &sharded{Checkpointable: x}
	for i := range x.Boxes() {
		t, err := x.Part(i)
		if err != nil {
			return nil, err
		}
		out.parts = append(out.parts, c.tensor(t))
	}
	return out, nil
}

// finish gives the copies of tensors their memory.
func (c *copier) finish(s *stage.Snapshot) error {
	local, err := s.LocalPlan()
	if err != nil {
		return err
	}

	for i := range local.Items {
		n, err := strconv.Atoi(local.Items[i].FQN())
		if err != nil {
			return err
		}
		d, err := s.Resolve(&local.Items[i])
		if err != nil {
			return err
		}
		*c.copies[c.order[n]] = *d.Tensor
	}

	return nil
}

// copyValue returns a deep copy of a value that is not a tensor: of numbers, strings,
// slices, arrays and maps, and of types with a binary encoding. It reports whether v is
// one.
func copyValue(v reflect.Value) (reflect.Value, bool) {
	if out, ok := recode(v); ok {
		return out, true
	}

	switch v.Kind() {
	case reflect.Interface:
		return copyInterface(v)
	case reflect.Slice, reflect.Array:
		return copyList(v)
	case reflect.Map:
		return copyMap(v)
	case reflect.Pointer:
		return v, v.IsNil()
	case reflect.Struct, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return v, false
	}

	return v, true // a number, a string or a bool
}

// recode copies a value by its binary encoding.
func recode(v reflect.Value) (reflect.Value, bool) {
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return v, false
	}

	switch x := v.Interface().(type) {
	case *big.Int:
		return reflect.ValueOf(new(big.Int).Set(x)), true
	case value.Ref: // only a name
		return v, true
	case encoding.BinaryMarshaler:
		out := reflect.New(v.Type()).Elem()
		target := out.Addr()
		if v.Kind() == reflect.Pointer {
			out.Set(reflect.New(v.Type().Elem()))
			target = out
		}

		into, ok := target.Interface().(encoding.BinaryUnmarshaler)
		if !ok {
			return v, false
		}

		b, err := x.MarshalBinary()
		return out, errors.Join(err, into.UnmarshalBinary(b)) == nil
	}

	return v, false
}

func copyInterface(v reflect.Value) (reflect.Value, bool) {
	out := reflect.New(v.Type()).Elem()
	if v.IsNil() {
		return out, true
	}
	e, ok := copyValue(v.Elem())
	if ok {
		out.Set(e)
	}
	return out, ok
}

func copyList(v reflect.Value) (reflect.Value, bool) {
	out := reflect.New(v.Type()).Elem()
	if v.Kind() == reflect.Slice {
		if v.IsNil() {
			return out, true
		}
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
	}

	for i := range v.Len() {
		e, ok := copyValue(v.Index(i))
		if !ok {
			return v, false
		}
		out.Index(i).Set(e)
	}

	return out, true
}

func copyMap(v reflect.Value) (reflect.Value, bool) {
	if v.IsNil() {
		return v, true
	}

	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	for it := v.MapRange(); it.Next(); {
		e, ok := copyValue(it.Value())
		if !ok {
			return v, false
		}
		out.SetMapIndex(it.Key(), e)
	}

	return out, true
}
