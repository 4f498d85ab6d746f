package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Contents returns the bytes of an item of a save plan, for a writer of one's own: of a
// tensor, the elements in row-major order. The bytes may be memory of the state, so they must
// not be changed. If the content does not match the item, the error wraps plan.ErrState.
func Contents(ctx context.Context, data Resolver, it *plan.WriteItem) ([]byte, error) {
	d, err := data.Resolve(it)
	if err != nil {
		return nil, plan.Named(it.FQN(), err)
	}

	b, err := contents(ctx, d, it)
	switch {
	case d.Stream != nil:
		err = errors.Join(err, d.Stream.Close())
	case d.Release != nil:
		b = slices.Clone(b) // the memory is not the item's after Release
		err = errors.Join(err, d.Release())
	}
	if err != nil {
		return nil, plan.Named(it.FQN(), err)
	}
	return b, nil
}

func contents(ctx context.Context, d plan.Data, it *plan.WriteItem) ([]byte, error) {
	if it.Kind == plan.KindBytes {
		if d.Tensor != nil || d.Stream != nil || int64(len(d.Bytes)) != it.Size {
			return nil, fmt.Errorf("%w: it was planned as %d bytes, but is %d now", plan.ErrState, it.Size, len(d.Bytes))
		}
		return d.Bytes, nil
	}

	var content interface {
		DType() tensor.DType
		Shape() []int64
	}
	switch {
	case d.Stream != nil:
		content = d.Stream
	case d.Tensor != nil:
		content = d.Tensor
	}

	if content == nil || content.DType() != it.Info.DType || !slices.Equal(content.Shape(), it.Box.Sizes) {
		return nil, fmt.Errorf("%w: it was planned as %v %v, but is %v now", plan.ErrState, it.Info.DType, it.Box.Sizes, content)
	}
	if d.Stream == nil {
		return d.Tensor.Contents(), nil
	}

	b := make([]byte, it.NumBytes())
	return b, d.Stream.ReadAt(ctx, b, 0)
}

// CopyChunk passes an item of a load plan to dst, for a reader of one's own. data has the
// bytes of the whole chunk or value that it.Source names: of a chunk, the elements in
// row-major order, as they were saved. CopyChunk takes the part that the item asks for and
// converts it to the dtype of the memory that dst provides. It returns how many of the
// bytes the item asked for. If data does not fit the chunk, the error wraps ErrCorrupt.
func CopyChunk(dst Receiver, md *meta.Metadata, it *plan.ReadItem, data []byte) (int64, error) {
	e, ok := md.Find(it.Source.FQN)
	if !ok {
		return 0, plan.Named(it.Source.FQN, plan.ErrMissing)
	}

	n, err := int64(len(data)), error(nil)
	if it.Kind == plan.KindBytes && e.Bytes != nil {
		err = dst.LoadBytes(it, e.Bytes.Codec, data)
	} else if err = copyChunk(dst, e, it, data); err == nil {
		n = it.SourceBox().Volume() * int64(e.Tensor.DType.Size())
	}
	if err != nil {
		return 0, plan.Named(e.FQN, err)
	}
	return n, nil
}

func copyChunk(dst Receiver, e *meta.Entry, it *plan.ReadItem, data []byte) error {
	if it.Kind == plan.KindBytes || e.Tensor == nil {
		return fmt.Errorf("%w: the item and the metadata differ in whether it is a tensor", plan.ErrMismatch)
	}

	i, ok := e.Tensor.FindChunk(it.Source.Offset, it.Source.Hint)
	if !ok {
		return fmt.Errorf("%w: no chunk at %v", plan.ErrMismatch, it.Source.Offset)
	}

	chunk, err := tensor.FromBytes(e.Tensor.DType, e.Tensor.Chunks[i].Sizes, data)
	if err != nil {
		return fmt.Errorf("%w: chunk at %v: %w", ErrCorrupt, it.Source.Offset, err)
	}

	src, err := chunk.Narrow(it.SourceBox())
	if err != nil {
		return err
	}

	t, err := dst.ResolveTensor(it)
	if err != nil {
		return err
	}

	if err := tensor.Convert(t, src, tensor.CastInRange); err != nil {
		return err
	}
	return dst.CommitTensor(it, t)
}
