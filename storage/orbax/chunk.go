package orbax

import (
	"context"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/orbax/ocdbt"
	"github.com/cairn-ckpt/cairn/storage/orbax/zarr"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// array is an array of the checkpoint: its metadata and its cells, in row-major order. A cell is a
// chunk of the tensor.
type array struct {
	*zarr.Array
	name  string         // in the database
	cells []*ocdbt.Value // nil: the cell has the fill value
}

// block returns a cell as a block. The array has no shards.
func (a *array) block(v *ocdbt.Value) *block {
	return &block{shape: a.Chunk, typ: &a.Type, codec: &a.Codec, inline: v.Inline, file: fileOf(v), offset: v.Offset, length: lengthOf(v)}
}

// fileOf returns the file with a value: its own, or the file of the node that has the value.
func fileOf(v *ocdbt.Value) string {
	if v.Inline != nil {
		return v.Node.File
	}
	return v.File
}

func lengthOf(v *ocdbt.Value) int64 {
	if v.Inline != nil {
		return int64(len(v.Inline))
	}
	return v.Length
}

// place is reading.Source.Place.
func (c *checkpoint) place(_ context.Context, e *meta.Entry, i int) (reading.Place, error) {
	a := c.arrays[e.FQN]
	v := a.cells[i]
	if v == nil || v.Inline != nil || a.Shards != nil || a.Codec.Zstd {
		return reading.Place{Decoder: &chunk{c, a, v}}, nil
	}
	r, err := a.block(v).region()
	return reading.Place{Region: r}, err
}

// chunk decodes a chunk. It implements reading.Decoder.
type chunk struct {
	c *checkpoint
	a *array
	v *ocdbt.Value // nil: the chunk has the fill value
}

var _ reading.Decoder = (*chunk)(nil)

// maxParts bounds the number of parts of a box.
const maxParts = 1 << 16

// Cut divides a box at the bounds of inner chunks.
func (k *chunk) Cut(box tensor.Box, _ int64) []tensor.Box {
	if k.v == nil || k.a.Shards == nil {
		return []tensor.Box{box}
	}
	inner := k.a.Shards.Chunk
	parts, n := within(box, inner), int64(1)
	for _, s := range parts.Sizes {
		n *= s
		if n > maxParts {
			return []tensor.Box{box}
		}
	}

	var out []tensor.Box
	for at := range each(parts) {
		if b, ok := box.Intersect(cellBox(at, inner)); ok {
			out = append(out, b)
		}
	}
	return out
}

// within returns the box of the numbers of the inner chunks that have elements of box.
func within(box tensor.Box, inner []int64) tensor.Box {
	out := tensor.Box{Offsets: make([]int64, len(inner)), Sizes: make([]int64, len(inner))}
	for d, n := range inner {
		out.Offsets[d] = box.Offsets[d] / n
		if box.Sizes[d] > 0 {
			out.Sizes[d] = (box.End(d)-1)/n + 1 - out.Offsets[d]
		}
	}
	return out
}

// each calls yield with the indices of all elements of a box, in row-major order. They are valid during the call.
func each(box tensor.Box) func(yield func(at []int64) bool) {
	return func(yield func(at []int64) bool) {
		if box.Empty() {
			return
		}
		at := slices.Clone(box.Offsets)
		for {
			if !yield(at) {
				return
			}
			d := len(at) - 1
			for ; d >= 0; d-- {
				if at[d]++; at[d] < box.End(d) {
					break
				}
				at[d] = box.Offsets[d]
			}
			if d < 0 {
				return
			}
		}
	}
}

// cellBox returns the box of a cell of full size in a grid.
func cellBox(at, size []int64) tensor.Box {
	b := tensor.Box{Offsets: make([]int64, len(at)), Sizes: size}
	for d, i := range at {
		b.Offsets[d] = i * size[d]
	}
	return b
}

// Decode implements reading.Decoder.
func (k *chunk) Decode(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (read int64, err error) {
	switch {
	case k.v == nil:
		return 0, k.a.fill(dst)
	case k.a.Shards == nil:
		return k.c.cache.read(ctx, k.a.block(k.v), box, dst, budget)
	}

	x, read, err := k.c.cache.index(ctx, k.a, k.v)
	if err != nil {
		return read, err
	}
	inner := k.a.Shards.Chunk
	for at := range each(within(box, inner)) {
		own := cellBox(at, inner)
		part, ok := box.Intersect(own)
		if !ok {
			continue
		}
		to, err := dst.Narrow(part.Relative(box.Offsets))
		if err != nil {
			return read, err
		}

		b := x.block(k.a, k.v, at)
		if b == nil {
			if err := k.a.fill(to); err != nil {
				return read, err
			}
			continue
		}
		n, err := k.c.cache.read(ctx, b, part.Relative(own.Offsets), to, budget)
		read += n
		if err != nil {
			return read, err
		}
	}
	return read, nil
}

// fill sets all elements to the fill value.
func (a *array) fill(dst *tensor.Tensor) error {
	if a.FillErr != nil {
		return a.FillErr
	}
	src, err := a.Fill.Expand(dst.Shape())
	if err != nil {
		return err
	}
	return tensor.Convert(dst, src, tensor.CastInRange)
}

// index is the index of a shard.
type index struct {
	ranges []zarr.Range
	grid   []int64
}

// block returns an inner chunk, or nil if it has the fill value.
func (x *index) block(a *array, v *ocdbt.Value, at []int64) *block {
	n := int64(0)
	for d, i := range at {
		n = n*x.grid[d] + i
	}
	r := x.ranges[n]
	if r.Absent {
		return nil
	}

	b := &block{shape: a.Shards.Chunk, typ: &a.Type, codec: &a.Shards.Codec, file: fileOf(v), offset: v.Offset + r.Offset, length: r.Length}
	if v.Inline != nil {
		b.inline = v.Inline[r.Offset:][:r.Length:r.Length]
	}
	return b
}

// maxIndexed bounds the entries of the indexes that a checkpoint keeps in memory, apart from the
// one that was read last.
const maxIndexed = 1 << 20

// index returns the index of a shard.
func (c *cache) index(ctx context.Context, a *array, v *ocdbt.Value) (x *index, read int64, err error) {
	key := pageKey{v.File, v.Offset, 0}
	if v.Inline == nil {
		c.mu.Lock()
		x = c.indexes[key]
		c.mu.Unlock()
		if x != nil {
			return x, 0, nil
		}
	}

	if x, read, err = c.readIndex(ctx, a, v); err != nil || v.Inline != nil {
		return x, read, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries += len(x.ranges); c.entries > maxIndexed {
		clear(c.indexes)
		c.entries = len(x.ranges)
	}
	c.indexes[key] = x
	return x, read, nil
}

func (c *cache) readIndex(ctx context.Context, a *array, v *ocdbt.Value) (*index, int64, error) {
	shard := &block{typ: &a.Type, codec: &a.Codec, inline: v.Inline, file: fileOf(v), offset: v.Offset, length: lengthOf(v)}
	n, err := a.IndexBytes()
	if err != nil {
		return nil, 0, err
	}
	if n > shard.length {
		return nil, 0, reading.Damaged(shard.file, "a shard of %d bytes at %d has no room for its index of %d bytes", shard.length, shard.offset, n)
	}

	at := shard.length - n
	if a.Shards.AtStart {
		at = 0
	}
	var p []byte
	if v.Inline != nil {
		p = v.Inline[at:][:n]
	} else {
		p = make([]byte, n)
		b := *shard
		b.offset += at
		if err := c.readFile(ctx, &b, p); err != nil {
			return nil, 0, err
		}
	}

	ranges, err := a.Shards.DecodeIndex(p, shard.length)
	if err != nil {
		return nil, n, shard.damaged(err)
	}
	return &index{ranges, a.Inner()}, n, nil
}

// checkCell decompresses all of a cell and returns an error if it is damaged.
func (c *cache) checkCell(ctx context.Context, a *array, v *ocdbt.Value) error {
	if a.Shards == nil {
		return c.check(ctx, a.block(v))
	}
	x, _, err := c.index(ctx, a, v)
	if err != nil {
		return err
	}
	for at := range each(tensor.Whole(x.grid)) {
		if b := x.block(a, v, at); b != nil {
			if err := c.check(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}
