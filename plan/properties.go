package plan

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Propertied is a tensor of the state that is saved with properties beside its
// dtype, such as PyTorch's requires_grad. They must be equal on all ranks.
type Propertied interface {
	Checkpointable
	// Properties returns them. Their DType is not used: it is that of the tensor.
	Properties() meta.Properties
}

// WithProperties returns t as a tensor that is saved with p. A load fills t. To
// give properties to a *tensor.Tensor pass it through [Whole]. The memory format
// is empty, "channels_last" or "preserve_format", and the layout is empty, because
// tensors of a state are strided: a save refuses other words.
func WithProperties(t Checkpointable, p meta.Properties) Propertied { return described{t, p} }

type described struct {
	Checkpointable
	properties meta.Properties
}

// Properties returns what WithProperties was given.
func (d described) Properties() meta.Properties { return d.properties }

// checkProperties refuses words that no reader would understand.
func checkProperties(p meta.Properties) error {
	switch p.MemoryFormat {
	case "", "channels_last", "preserve_format":
	default:
		return fmt.Errorf("the memory format %q is not known", p.MemoryFormat)
	}
	if p.Layout != "" {
		return fmt.Errorf("the layout is %q, and tensors of a state are strided", p.Layout)
	}
	return nil
}

// Whole returns t as a Checkpointable that this rank holds all of. In a state it
// is the same as t.
func Whole(t *tensor.Tensor) Checkpointable { return whole{t} }

type whole struct{ *tensor.Tensor }

// GlobalShape returns the tensor's shape.
func (w whole) GlobalShape() []int64 { return w.Shape() }

// Boxes returns the box of the whole tensor.
func (w whole) Boxes() []tensor.Box { return []tensor.Box{tensor.Whole(w.Shape())} }

// Part returns the tensor.
func (w whole) Part(i int) (*tensor.Tensor, error) {
	if i != 0 {
		return nil, fmt.Errorf("%w: part %d of 1", tensor.ErrShape, i)
	}
	return w.Tensor, nil
}

// plain returns the *tensor.Tensor or Checkpointable that was given to [Whole] or
// [WithProperties], or v itself if neither of them made it.
func plain(v any) any {
	for {
		switch w := v.(type) {
		case described:
			v = w.Checkpointable
		case whole:
			return w.Tensor
		default:
			return v
		}
	}
}
