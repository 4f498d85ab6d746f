package foreign

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// maxExpanded bounds the size of a chunk that repeats the elements of its file:
// a few stored bytes may not ask for any amount of memory.
const maxExpanded = 1 << 30

// CheckHeld returns an error that wraps storage.ErrCorrupt unless the files that
// hold e are large enough for what the metadata says.
func (c *Checkpoint) CheckHeld(ctx context.Context, e *meta.Entry) error {
	if e.Tensor == nil {
		return nil // the source decodes it before anybody makes room for it
	}
	for i, box := range e.Tensor.Chunks {
		if box.Empty() {
			continue
		}
		if _, _, err := c.locate(ctx, e, i); err != nil {
			return err
		}
	}
	return nil
}

// locate returns where a chunk is, and its layout where that is a region. It
// refuses what the files cannot hold.
func (c *Checkpoint) locate(ctx context.Context, e *meta.Entry, i int) (Chunk, *layout, error) {
	fail := func(err error) (Chunk, *layout, error) { return Chunk{}, nil, fmt.Errorf("%q: %w", e.FQN, err) }
	at, err := c.src.Chunk(ctx, e, i)
	if err != nil {
		return fail(err)
	}
	switch {
	case (at.Region == nil) == (at.Maker == nil):
		return fail(fmt.Errorf("%w: chunk %d lies nowhere", storage.ErrCorrupt, i))
	case at.Region == nil:
		return at, nil, nil
	}
	size, ok := c.sizes[at.Region.File]
	if !ok {
		return fail(fmt.Errorf("%w: it lies in %q, which is no file of the checkpoint", storage.ErrCorrupt, at.Region.File))
	}
	sizes := e.Tensor.Chunks[i].Sizes
	l, err := layoutOf(at.Region, sizes, size)
	if err != nil {
		return fail(err)
	}
	if n, err := tensor.NumBytes(e.Tensor.DType, sizes); err != nil || l.expands() && n > maxExpanded {
		return fail(fmt.Errorf("%w: a chunk of %v repeats the few elements at %d of %s", storage.ErrCorrupt, sizes, at.Region.Offset, at.Region.File))
	}
	return at, l, nil
}
