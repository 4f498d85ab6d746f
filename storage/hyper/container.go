package hyper

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// container is a file of tensors, described.
type container struct {
	size    int64
	tensors map[string]held
	saved   *torchsave.File // nil: a safetensors file, which has no checksums
	err     error           // why it could not be described
}

// payload returns the bytes of all tensors.
func (c *container) payload() int64 {
	var n int64
	for _, h := range c.tensors {
		n += h.region.End - h.region.Offset
	}
	return n
}

// held is a tensor in a file.
type held struct {
	shape  []int64
	region reading.Region
}

// openContainer describes the tensors of a file, whichever of its two forms it
// has: whatever its name says, some versions write torch.save files.
func openContainer(ctx context.Context, store blob.Store, name string) (*container, error) {
	r, err := store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	c := &container{size: r.Size(), tensors: map[string]held{}}
	head := make([]byte, min(4, c.size))
	if err := r.ReadAt(ctx, head, 0); err != nil {
		return nil, err
	}
	fill := c.fromSafetensors
	if string(head) == "PK\x03\x04" || len(head) > 0 && head[0] == 0x80 && string(head[1:]) != "\x00\x00\x00" {
		fill = c.fromTorchSave
	}
	if err := fill(ctx, r, name); err != nil {
		return nil, &storage.FileError{File: name, Err: err}
	}
	return c, nil
}

// fromSafetensors reads the header of a safetensors file.
func (c *container) fromSafetensors(ctx context.Context, r blob.Reader, name string) error {
	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, c.size)
	if errors.Is(err, safetensors.ErrHeader) {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err != nil {
		return err
	}
	for _, e := range h.Entries {
		d, ok := safetensors.TensorDType(e.DType)
		if !ok {
			return fmt.Errorf("%w: %q has elements of type %s", storage.ErrVersion, e.Name, e.DType)
		}
		c.tensors[e.Name] = held{e.Shape, reading.Region{File: name, Offset: h.Size + e.Begin, End: h.Size + e.End, DType: d}}
	}
	return nil
}

// fromTorchSave reads the description of a torch.save file, which must hold a
// dict of tensors.
func (c *container) fromTorchSave(ctx context.Context, r blob.Reader, name string) error {
	f, err := torchsave.Open(ctx, r.ReadAt, c.size)
	if errors.Is(err, torchsave.ErrMalformed) {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err != nil {
		return err
	}
	c.saved = f
	for _, p := range pairsOf(f.Root) {
		key, ok := p.Key.(string)
		t, isTensor := p.Value.(*torchsave.Tensor)
		if !ok || !isTensor {
			return fmt.Errorf("%w: %v is %T; want a name and a tensor", storage.ErrCorrupt, p.Key, p.Value)
		}
		at := reading.Region{File: name, Offset: t.Offset, End: t.End, DType: t.DType}
		if !t.Contiguous() {
			at.Strides = t.Strides
		}
		if t.Lazy() {
			at.Resolve = t.Resolve
		}
		at.Sum = (*reading.Sum)(t.Sum)
		c.tensors[key] = held{t.Shape, at}
	}
	if len(c.tensors) == 0 {
		return fmt.Errorf("%w: a torch.save file of %T; want a dict of tensors", storage.ErrCorrupt, f.Root)
	}
	return nil
}

// pairsOf returns what a dict holds, of whichever kind it is.
func pairsOf(v any) []value.Pair {
	switch v := v.(type) {
	case map[string]any:
		var out []value.Pair
		for k, e := range v {
			out = append(out, value.Pair{Key: k, Value: e})
		}
		return out
	case *value.Dict:
		return v.Pairs
	}
	return nil
}

// part returns where a box of the tensor lies, which begins at local in it.
func (h *held) part(local []int64, box tensor.Box) reading.Region {
	at := h.region
	strides := at.Strides
	if strides == nil {
		strides = contiguous(h.shape)
	}
	for d, o := range local {
		at.Offset += o * strides[d] * int64(at.DType.Size())
	}
	if !slices.Equal(h.shape, box.Sizes) {
		at.Strides = strides
	}
	if box.Empty() {
		at.Offset, at.Strides = h.region.Offset, nil
	}
	return at
}

// contiguous returns the strides of a tensor of that shape, the last dimension
// fastest.
func contiguous(shape []int64) []int64 {
	out := make([]int64, len(shape))
	n := int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		out[d] = n
		n *= max(1, shape[d])
	}
	return out
}
