package torchsave

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Materialise returns v with every *Tensor inside replaced by a
// *tensor.Tensor in memory of its own, contiguous, and every *Storage by a
// record of its class and a tensor of one dimension. A tensor that is at several
// places is read once, and stays one tensor. If the tensors have more than limit
// bytes in all, the error wraps ErrLimit, and they take no memory. v itself is
// not changed. A tensor that is all of a record is compared with its checksum.
func Materialise(ctx context.Context, v any, read ReadFunc, limit int64) (any, error) {
	m := &materialiser{ctx: ctx, read: read, room: limit, made: map[*Tensor]*tensor.Tensor{}}
	r := value.Replacer{With: Inside(func(_ []string, t *Tensor) (any, error) { return m.tensor(t) })}
	return r.Replace(v)
}

// Inside returns the With of a value.Replacer that replaces the tensors inside of
// a value by what with returns. A *Storage becomes a record of its class around
// the tensor of one dimension that has all of its elements, its argument 0. with is
// called again for a tensor that stands at several places.
func Inside(with func(at []string, t *Tensor) (any, error)) func(at []string, v any) (any, bool, error) {
	storages := map[*Storage]any{}
	return func(at []string, v any) (any, bool, error) {
		switch v := v.(type) {
		case *Tensor:
			out, err := with(at, v)
			return out, true, err
		case *Storage:
			if storages[v] == nil {
				t, err := with(append(slices.Clip(at), "0"), v.flat())
				if err != nil {
					return nil, true, err
				}
				storages[v] = &value.Object{Module: v.class.Module, Name: v.class.Name, Call: true, Args: value.Tuple{t}}
			}
			return storages[v], true, nil
		}
		return nil, false, nil
	}
}

// flat returns all elements of the storage as a tensor.
func (s *Storage) flat() *Tensor {
	return &Tensor{
		DType: s.DType, Shape: []int64{s.numBytes() / int64(s.DType.Size())}, Strides: []int64{1},
		Offset: s.Offset, End: s.End, Sum: s.Sum, StorageKey: s.Key,
	}
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

// materialiser reads tensors, each once.
type materialiser struct {
	ctx  context.Context
	read ReadFunc
	room int64
	made map[*Tensor]*tensor.Tensor
}

// tensor reads a tensor, if there is room for it: as much as its elements take
// in the file and in memory.
func (m *materialiser) tensor(t *Tensor) (any, error) {
	if out := m.made[t]; out != nil {
		return out, nil
	}
	n := t.NumBytes()
	if !t.Contiguous() {
		n = max(n, t.Span())
	}
	if n > m.room {
		return nil, fmt.Errorf("%w: tensor %v of %v inside of a value: %d bytes, and %d are allowed", ErrLimit, t.Shape, t.DType, n, m.room)
	}
	m.room -= n
	out, err := t.Read(m.ctx, m.read)
	m.made[t] = out
	return out, err
}
