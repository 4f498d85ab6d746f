package foreign

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/fetch"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// maxExpanded bounds the size of a chunk that repeats the elements of its
	// file: a few stored bytes may not ask for any amount of memory.
	maxExpanded = 1 << 30
	// maxShared is how many times the size of a file its chunks may have in sum:
	// layers that share their weights name the same bytes again and again. The
	// excess of all files together is bounded by maxExpanded.
	maxShared = 64
)

// errClaims reports a file whose chunks are too large for it in sum.
var errClaims = fmt.Errorf("%w: its tensors repeat its bytes too often", storage.ErrCorrupt)

// claims returns an error that wraps errClaims if the chunks in a file are too
// large for it in sum.
func (c *Checkpoint) claims(file string) error {
	c.claimed.Do(c.sumClaims)
	n, ok := c.greedy[file]
	if !ok {
		return nil
	}
	return fmt.Errorf("%w: %s of %d bytes has tensors of %d bytes", errClaims, file, c.sizes[file], n)
}

// sumClaims finds the files whose chunks are too large for them in sum. A small
// excess is allowed. Compressed chunks do not count.
func (c *Checkpoint) sumClaims() {
	sums := make(map[string]int64, len(c.sizes))
	for i := range c.md.Entries {
		t := c.md.Entries[i].Tensor
		if t == nil {
			continue
		}
		for k, box := range t.Chunks {
			l := &t.Locs[k]
			if l.Detail != nil && len(l.Detail.Transforms) > 0 {
				continue
			}
			n, err := tensor.NumBytes(t.DType, box.Sizes)
			if err != nil {
				n = math.MaxInt64
			}
			sums[l.File] += min(n, math.MaxInt64-sums[l.File])
		}
	}
	beyond := int64(0)
	for file, n := range sums {
		size, ok := c.sizes[file]
		if !ok || size == 0 || n/maxShared <= size {
			delete(sums, file)
			continue
		}
		beyond += min(n-maxShared*size, math.MaxInt64-beyond)
	}
	if beyond > maxExpanded {
		c.greedy = sums
	}
}

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

// locate returns where a chunk is, and its layout if that is a region. It
// refuses what the files cannot hold.
func (c *Checkpoint) locate(ctx context.Context, e *meta.Entry, i int) (Chunk, *layout, error) {
	at, err := c.src.Chunk(ctx, e, i)
	if err != nil {
		return Chunk{}, nil, fmt.Errorf("%q: %w", e.FQN, err)
	}
	l, err := c.layout(e, i, at)
	return at, l, err
}

// locateAll is locate for many chunks. It calls found with the number of each,
// from several goroutines at once.
func (c *Checkpoint) locateAll(ctx context.Context, ids []ChunkID, o storage.ReadOptions, found func(n int, at Chunk, l *layout)) error {
	if c.src.Chunks != nil && len(ids) > 1 {
		return c.src.Chunks(ctx, ids, o, func(n int, at Chunk) error {
			l, err := c.layout(ids[n].Entry, ids[n].N, at)
			if err == nil {
				found(n, at, l)
			}
			return err
		})
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fetch.Workers(o.Parallel))
	for n, id := range ids {
		if gctx.Err() != nil {
			break
		}
		g.Go(guard.Func(func() error {
			at, l, err := c.locate(gctx, id.Entry, id.N)
			if err == nil {
				found(n, at, l)
			}
			return err
		}))
	}
	return g.Wait()
}

// layout returns the layout of a chunk that lies in a region. It refuses what the
// files cannot hold.
func (c *Checkpoint) layout(e *meta.Entry, i int, at Chunk) (*layout, error) {
	fail := func(err error) (*layout, error) { return nil, fmt.Errorf("%q: %w", e.FQN, err) }
	switch {
	case (at.Region == nil) == (at.Maker == nil):
		return fail(fmt.Errorf("%w: chunk %d lies nowhere", storage.ErrCorrupt, i))
	case at.Region == nil:
		return nil, nil
	}
	size, ok := c.sizes[at.Region.File]
	if !ok {
		return fail(fmt.Errorf("%w: it lies in %q, which is no file of the checkpoint", storage.ErrCorrupt, at.Region.File))
	}
	if err := c.claims(at.Region.File); err != nil {
		return fail(err)
	}
	sizes := e.Tensor.Chunks[i].Sizes
	l, err := layoutOf(at.Region, sizes, size)
	if err != nil {
		return fail(err)
	}
	if n, err := tensor.NumBytes(e.Tensor.DType, sizes); err != nil || l.expands() && n > maxExpanded {
		return fail(fmt.Errorf("%w: a chunk of %v repeats the few elements at %d of %s", storage.ErrCorrupt, sizes, at.Region.Offset, at.Region.File))
	}
	return l, nil
}
