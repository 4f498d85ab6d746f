package platform

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Whole is the batch dimension of an input that every micro-batch gets as it is.
const Whole = -1

// Batch is the input of one step: tensors, nested values with tensors inside,
// and anything else.
type Batch struct {
	Args  []any
	Named map[string]any
}

// BatchDims are the dimensions along which the tensors of a [Batch] are cut, or
// [Whole]. Nil Args, and a name that is not in Named, mean dimension 0. Inputs without a
// tensor are never cut.
type BatchDims struct {
	Args  []int
	Named map[string]int
}

// MicroBatch cuts a batch into n of equal size, sharing the memory of its
// tensors. A dimension that n does not divide, or that a tensor does not have, is
// an error that wraps [tensor.ErrShape] and names the input. An input that holds a tensor
// inside, such as a variable or a share of a sharded tensor, cannot be cut: it is an error
// that wraps [value.ErrValue], unless its dimension is [Whole].
func MicroBatch(n int, b Batch, dims BatchDims) ([]Batch, error) {
	if n < 1 {
		return nil, fmt.Errorf("micro-batch: %d parts: %w", n, tensor.ErrShape)
	}
	if dims.Args != nil && len(dims.Args) != len(b.Args) {
		return nil, fmt.Errorf("micro-batch: %d dimensions for %d arguments: %w", len(dims.Args), len(b.Args), tensor.ErrShape)
	}
	for name := range dims.Named {
		if _, ok := b.Named[name]; !ok {
			return nil, fmt.Errorf("micro-batch: a dimension for %q, which is not an input: %w", name, tensor.ErrShape)
		}
	}
	out := make([]Batch, n)
	for i := range out {
		var err error
		if out[i], err = dims.part(b, n, i); err != nil {
			return nil, fmt.Errorf("micro-batch: %w", err)
		}
	}
	return out, nil
}

// part returns micro-batch i of n.
func (d BatchDims) part(b Batch, n, i int) (Batch, error) {
	var out Batch
	for k, v := range b.Args {
		dim := 0
		if d.Args != nil {
			dim = d.Args[k]
		}
		cut, err := cutInput(v, dim, n, i)
		if err != nil {
			return out, fmt.Errorf("argument %d: %w", k, err)
		}
		out.Args = append(out.Args, cut)
	}
	if b.Named == nil {
		return out, nil
	}
	out.Named = make(map[string]any, len(b.Named))
	for _, name := range slices.Sorted(maps.Keys(b.Named)) {
		cut, err := cutInput(b.Named[name], d.Named[name], n, i)
		if err != nil {
			return out, fmt.Errorf("argument %q: %w", name, err)
		}
		out.Named[name] = cut
	}
	return out, nil
}

// cutInput returns part i of n of all tensors in v.
func cutInput(v any, dim, n, i int) (any, error) {
	if dim == Whole {
		return v, nil
	}
	return MapTensors(v, func(t *tensor.Tensor) (*tensor.Tensor, error) {
		part, err := tensor.Chunk(t, dim, n, i)
		if err != nil {
			return nil, err
		}
		if t.Shape()[dim]%int64(n) != 0 {
			return nil, fmt.Errorf("%w: %v is not divisible by %d in dimension %d", tensor.ErrShape, t, n, dim)
		}
		return part, nil
	})
}
