package torchsave

import (
	"context"
	"fmt"
	"hash/crc32"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Tensor is a tensor inside of a file: a view of one of its storages. It lies
// inside of that storage, its strides are not negative, and nothing about it
// overflows.
type Tensor struct {
	DType tensor.DType
	Shape []int64
	// Strides are the distances between neighbours in each dimension, in
	// elements.
	Strides []int64
	// Offset is where the first element lies, and End where the storage ends,
	// in bytes of the file.
	Offset, End int64
	// Sum is the record that the storage is. Nil: it has no checksum.
	Sum *Sum
	// StorageKey names the storage. Tensors of one storage share their bytes.
	StorageKey   string
	RequiresGrad bool
	// Parameter says that it is a torch.nn.Parameter.
	Parameter bool
	// Conj and Neg say that the tensor shows the conjugates of the stored
	// elements, their negatives, or both: PyTorch computes these only when it
	// must. Whoever reads the stored bytes must Resolve them.
	Conj, Neg bool
}

// Contiguous reports whether the elements follow each other in the file without
// a gap, the last dimension fastest.
func (t *Tensor) Contiguous() bool {
	want := int64(1)
	for d := len(t.Shape) - 1; d >= 0; d-- {
		if t.Shape[d] == 0 {
			return true
		}
	}
	for d := len(t.Shape) - 1; d >= 0; d-- {
		if t.Shape[d] != 1 && t.Strides[d] != want {
			return false
		}
		want *= t.Shape[d]
	}
	return true
}

// NumBytes returns the bytes of the tensor's contiguous form.
func (t *Tensor) NumBytes() int64 {
	n, _ := tensor.NumBytes(t.DType, t.Shape) // checked when it was made
	return n
}

// Span returns the bytes of the file from the first element to the last.
func (t *Tensor) Span() int64 {
	n := int64(1)
	for d, size := range t.Shape {
		if size == 0 {
			return 0
		}
		n += (size - 1) * t.Strides[d]
	}
	return n * int64(t.DType.Size())
}

// Read returns the elements that the tensor shows, contiguous and in memory of
// their own. Where they are all of a record that is damaged the error wraps
// ErrChecksum.
func (t *Tensor) Read(ctx context.Context, read ReadFunc) (*tensor.Tensor, error) {
	data := make([]byte, t.Span())
	if len(data) > 0 {
		if err := read(ctx, data, t.Offset); err != nil {
			return nil, err
		}
	}
	if err := t.checkSum(data); err != nil {
		return nil, err
	}
	t.Resolve(data)
	if t.Contiguous() {
		return tensor.FromBytes(t.DType, t.Shape, data)
	}
	v, err := tensor.FromStrided(t.DType, t.Shape, t.Strides, 0, data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrView, err)
	}
	return v.Clone(), nil
}

// checkSum compares the bytes of the file from the first element to the last with
// the checksum of the record, where they are all of it.
func (t *Tensor) checkSum(data []byte) error {
	if t.Sum == nil || t.Offset != t.Sum.Offset || int64(len(data)) != t.Sum.End-t.Sum.Offset {
		return nil
	}
	if crc32.ChecksumIEEE(data) != t.Sum.CRC {
		return fmt.Errorf("%w: %q", ErrChecksum, t.Sum.Record)
	}
	return nil
}
