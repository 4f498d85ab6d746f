package torchsave

import (
	"context"
	"fmt"
	"reflect"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Materialise returns v with every *Tensor inside replaced by a
// *tensor.Tensor in memory of its own, contiguous, and every *Storage by a
// record of its class and a tensor of one dimension. What stands at several places is read once, and stays
// one thing. Tensors of more than limit bytes in all are refused with ErrLimit,
// before they take any memory. v itself stays as it is. A tensor that is all of a
// record is compared with its checksum.
func Materialise(ctx context.Context, v any, read ReadFunc, limit int64) (any, error) {
	m := &materialiser{ctx: ctx, read: read, room: limit, made: map[any]any{}}
	return m.value(v, 0)
}

// Unmarshal reads a file whole: its value, with the tensors in memory. It
// refuses one whose tensors take more than limit bytes with ErrLimit.
func Unmarshal(ctx context.Context, read ReadFunc, size, limit int64) (any, error) {
	f, err := Open(ctx, read, size)
	if err != nil {
		return nil, err
	}
	return Materialise(ctx, f.Root, read, limit)
}

// maxDepth bounds how deeply values lie in each other. Pickles do not get there.
const maxDepth = 2000

// materialiser copies values. What it has made is in made, by what it was made
// of: a pickle can name one list in many places, and those lists in many again.
type materialiser struct {
	ctx  context.Context
	read ReadFunc
	room int64
	made map[any]any
}

// listID identifies a list or tuple by its memory.
type listID struct {
	first *any
	tuple bool
}

// identity returns what makes a container or tensor the same as another one, or
// nil where there is nothing to tell.
func identity(v any) any {
	switch v := v.(type) {
	case *Tensor, *Storage, *value.Dict, *value.Set, *value.Object:
		return v
	case map[string]any:
		return reflect.ValueOf(v).Pointer()
	case value.Tuple:
		if len(v) > 0 {
			return listID{&v[0], true}
		}
	case []any:
		if len(v) > 0 {
			return listID{&v[0], false}
		}
	}
	return nil
}

func (m *materialiser) value(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: a value nested deeper than %d", ErrLimit, maxDepth)
	}
	id := identity(v)
	if id == nil {
		return v, nil
	}
	if out, ok := m.made[id]; ok {
		return out, nil
	}
	out, err := m.make(v, depth+1)
	m.made[id] = out
	return out, err
}

func (m *materialiser) make(v any, depth int) (any, error) {
	switch v := v.(type) {
	case *Tensor:
		return m.tensor(v)
	case *Storage:
		return m.storage(v)
	case map[string]any:
		return m.dict(v, depth)
	case []any:
		return m.list(v, depth)
	case value.Tuple:
		l, err := m.list(v, depth)
		return value.Tuple(l), err
	case *value.Dict:
		pairs, err := m.pairs(v.Pairs, depth)
		return &value.Dict{Pairs: pairs, Ordered: v.Ordered}, err
	case *value.Set:
		items, err := m.list(v.Items, depth)
		return &value.Set{Items: items, Frozen: v.Frozen}, err
	case *value.Object:
		return m.object(v, depth)
	}
	return v, nil
}

// storage reads a storage. It does not become a tensor, which Python would tell
// from it.
func (m *materialiser) storage(s *Storage) (*value.Object, error) {
	t, err := m.tensor(&Tensor{
		DType: s.DType, Shape: []int64{s.numBytes() / int64(s.DType.Size())}, Strides: []int64{1},
		Offset: s.Offset, End: s.End, Sum: s.Sum, StorageKey: s.Key,
	})
	if err != nil {
		return nil, err
	}
	return &value.Object{Module: s.class.Module, Name: s.class.Name, Call: true, Args: value.Tuple{t}}, nil
}

// tensor reads a tensor, if there is room for it: as much as its elements take
// in the file and in memory.
func (m *materialiser) tensor(t *Tensor) (*tensor.Tensor, error) {
	n := t.NumBytes()
	if !t.Contiguous() {
		n = max(n, t.Span())
	}
	if n > m.room {
		return nil, fmt.Errorf("%w: tensor %v of %v inside of a value: %d bytes where %d are allowed", ErrLimit, t.Shape, t.DType, n, m.room)
	}
	m.room -= n
	return t.Read(m.ctx, m.read)
}

func (m *materialiser) dict(v map[string]any, depth int) (map[string]any, error) {
	if v == nil {
		return nil, nil
	}
	out := make(map[string]any, len(v))
	for k, e := range v {
		var err error
		if out[k], err = m.value(e, depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *materialiser) list(v []any, depth int) ([]any, error) {
	if v == nil {
		return nil, nil
	}
	out := make([]any, len(v))
	for i, e := range v {
		var err error
		if out[i], err = m.value(e, depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *materialiser) pairs(v []value.Pair, depth int) ([]value.Pair, error) {
	if v == nil {
		return nil, nil
	}
	out := make([]value.Pair, len(v))
	for i, p := range v {
		k, err := m.value(p.Key, depth)
		if err != nil {
			return nil, err
		}
		e, err := m.value(p.Value, depth)
		if err != nil {
			return nil, err
		}
		out[i] = value.Pair{Key: k, Value: e}
	}
	return out, nil
}

func (m *materialiser) object(v *value.Object, depth int) (*value.Object, error) {
	out := *v
	var err error
	if out.Args, err = m.list(v.Args, depth); err != nil {
		return nil, err
	}
	if out.Kwargs, err = m.dict(v.Kwargs, depth); err != nil {
		return nil, err
	}
	if out.State, err = m.value(v.State, depth); err != nil {
		return nil, err
	}
	if out.Items, err = m.list(v.Items, depth); err != nil {
		return nil, err
	}
	out.Pairs, err = m.pairs(v.Pairs, depth)
	return &out, err
}
