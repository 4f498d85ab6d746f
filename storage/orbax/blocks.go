package orbax

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/orbax/zarr"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// block is a contiguous run of stored elements: a chunk, or an inner chunk of a shard.
type block struct {
	shape  []int64 // of the elements, in full size
	typ    *zarr.Type
	codec  *zarr.Codec
	inline []byte // nil: the bytes are in a file
	file   string
	offset int64
	length int64
}

// damaged returns an error that names the file and the place of the block.
func (b *block) damaged(err error) error {
	return reading.Damaged(b.file, "the chunk at %d+%d: %w", b.offset, b.length, err)
}

// size returns the number of bytes of the elements.
func (b *block) size() int64 {
	return tensor.Box{Sizes: b.shape}.Volume() * int64(b.typ.DType.Size())
}

// errSize reports a chunk of the wrong size.
func (b *block) errSize() error {
	return b.damaged(fmt.Errorf("it has other than the %d bytes of %v of %s", b.size(), b.shape, b.typ.Name))
}

// region returns the block as a region of a file. The block is not compressed.
func (b *block) region() (*reading.Region, error) {
	if b.length != b.size() {
		return nil, b.errSize()
	}
	return &reading.Region{
		File: b.file, Offset: b.offset, End: b.offset + b.length,
		DType: b.typ.DType, Strides: strides(b.shape, b.codec.Order), Resolve: b.typ.Resolve(),
	}, nil
}

// strides returns the strides, in elements, of a chunk with dimensions that are stored in an order.
func strides(shape []int64, order []int) []int64 {
	out := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		d := i
		if order != nil {
			d = order[i]
		}
		out[d] = n
		n *= shape[d]
	}
	return out
}

// ordered returns the sizes or offsets in the order in which the dimensions are stored.
func ordered(list []int64, order []int) []int64 {
	if order == nil {
		return list
	}
	out := make([]int64, len(list))
	for i, d := range order {
		out[i] = list[d]
	}
	return out
}

// orderedView returns t with its dimensions in the order in which they are stored.
func orderedView(t *tensor.Tensor, order []int) (_ *tensor.Tensor, err error) {
	at := make([]int, len(order)) // the dimensions of t
	for i := range at {
		at[i] = i
	}
	for i, d := range order {
		j := slices.Index(at, d)
		if i == j {
			continue
		}
		if t, err = t.Transpose(i, j); err != nil {
			return nil, err
		}
		at[i], at[j] = at[j], at[i]
	}
	return t, nil
}

const (
	// smallBlock is the size up to which a compressed block is decompressed at once. A larger one
	// is decompressed page by page.
	smallBlock = 4 << 20
	// maxWindow bounds the memory that a compressed block may make its reader keep, as the zstd
	// program does.
	maxWindow = 128 << 20
)

// read fills dst with the elements of box and returns the number of bytes that it read from the file.
func (c *cache) read(ctx context.Context, b *block, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	switch {
	case b.codec.Zstd && b.inline == nil:
		return c.readCompressed(ctx, b, box, dst, budget)
	case b.codec.Zstd:
		return c.readSmall(ctx, b, box, dst)
	case b.inline == nil:
		r, err := b.region()
		if err != nil {
			return 0, err
		}
		n, err := reading.ReadBox(ctx, c.store, r, b.shape, box, dst, budget)
		return n, b.explain(err)
	case b.length != b.size():
		return 0, b.errSize()
	}

	p := b.inline
	if resolve := b.typ.Resolve(); resolve != nil {
		p = slices.Clone(p)
		resolve(p)
	}
	return 0, b.fill(p, 0, box, dst)
}

// readCompressed reads a compressed block of a file. If it would be decompressed a second time, it
// goes to the temporary file, as long as there is room.
func (c *cache) readCompressed(ctx context.Context, b *block, box tensor.Box, dst *tensor.Tensor, budget int64) (read int64, err error) {
	if _, ok, err := c.readSpilled(ctx, b, box, dst, budget, false); ok {
		return 0, err
	}

	from := c.readPages
	if b.size() <= smallBlock {
		from = c.readSmall
	}
	for {
		n, err := from(ctx, b, box, dst)
		read += n
		if !errors.Is(err, errAgain) {
			return read, err
		}
		n, ok, err := c.readSpilled(ctx, b, box, dst, budget, true)
		read += n
		if ok {
			return read, err
		}
	}
}

// explain returns the error of a read from the file of the block: a file that is missing or too
// short is damage.
func (b *block) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return reading.Damaged(b.file, "the file is missing")
	case errors.Is(err, blob.ErrRange):
		return b.damaged(errors.New("the file ends before it"))
	}
	return err
}

// fill copies elements of box to dst. p holds elements of the block from element at on, in the order in
// which they are stored.
func (b *block) fill(p []byte, at int64, box tensor.Box, dst *tensor.Tensor) error {
	to, err := orderedView(dst, b.codec.Order)
	if err != nil {
		return err
	}
	shape, size := ordered(b.shape, b.codec.Order), int64(b.typ.DType.Size())
	box = tensor.Box{Offsets: ordered(box.Offsets, b.codec.Order), Sizes: ordered(box.Sizes, b.codec.Order)}

	runs, err := tensor.FlatBoxes(shape, at, at+int64(len(p))/size)
	if err != nil {
		return err
	}
	for _, run := range runs {
		n := run.Volume() * size
		if err := fillRun(p[:n], b.typ.DType, run, box, to); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// fillRun copies the elements that run and box have in common. p holds the elements of run, and to has
// the shape of box.
func fillRun(p []byte, dtype tensor.DType, run, box tensor.Box, to *tensor.Tensor) error {
	common, ok := run.Intersect(box)
	if !ok {
		return nil
	}
	src, err := tensor.FromBytes(dtype, run.Sizes, p)
	if err != nil {
		return err
	}
	if src, err = src.Narrow(common.Relative(run.Offsets)); err != nil {
		return err
	}
	if to, err = to.Narrow(common.Relative(box.Offsets)); err != nil {
		return err
	}
	return tensor.Convert(to, src, tensor.CastInRange)
}

// touches reports whether a run of elements of the block has elements of box.
func (b *block) touches(lo, hi int64, box tensor.Box) (bool, error) {
	shape := ordered(b.shape, b.codec.Order)
	box = tensor.Box{Offsets: ordered(box.Offsets, b.codec.Order), Sizes: ordered(box.Sizes, b.codec.Order)}
	runs, err := tensor.FlatBoxes(shape, lo, hi)
	return slices.ContainsFunc(runs, func(r tensor.Box) bool { _, ok := r.Intersect(box); return ok }), err
}

// whole returns the memory of dst if the bytes of the block can be decompressed into it: it
// receives the whole block as it is stored.
func (b *block) whole(box tensor.Box, dst *tensor.Tensor) []byte {
	if !slices.Equal(box.Sizes, b.shape) || dst.DType() != b.typ.DType || b.codec.Order != nil {
		return nil
	}
	p, ok := dst.Bytes()
	if !ok || int64(len(p)) != b.size() {
		return nil
	}
	return p
}

// readSmall decompresses a whole block at once, and keeps it unless dst receives all of it.
func (c *cache) readSmall(ctx context.Context, b *block, box tensor.Box, dst *tensor.Tensor) (read int64, err error) {
	if p := b.whole(box, dst); p != nil {
		return c.inflate(ctx, b, p)
	}

	if b.inline != nil {
		p := make([]byte, b.size())
		if _, err := c.inflate(ctx, b, p); err != nil {
			return 0, err
		}
		return 0, b.fill(p, 0, box, dst)
	}

	key := pageKey{b.file, b.offset, 0}
	pg := c.get(key)
	if pg == nil {
		if err := c.spill.again(b, box); err != nil {
			return 0, err
		}
		p := c.memory(b.size())
		if read, err = c.inflate(ctx, b, p); err != nil {
			return read, err
		}
		pg = c.put(key, p)
	}
	defer c.release(pg)
	return read, b.fill(pg.p, 0, box, dst)
}

// newSmall returns a decoder of whole blocks, which never makes more bytes than it has memory for.
func newSmall() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		panic(err) // the options are constants
	}
	return d
}

// inflate decompresses a small block into p.
func (c *cache) inflate(ctx context.Context, b *block, p []byte) (read int64, err error) {
	from := b.inline
	if from == nil {
		if b.length > 2*b.size()+smallBlock {
			return 0, b.errSize()
		}
		from = make([]byte, b.length)
		if err := c.readFile(ctx, b, from); err != nil {
			return 0, err
		}
		read = b.length
	}

	out, err := c.small().DecodeAll(from, p[:0:len(p)])
	switch {
	case err != nil && !errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return read, b.damaged(err)
	case err != nil || len(out) != len(p):
		return read, b.errSize()
	}
	if resolve := b.typ.Resolve(); resolve != nil {
		resolve(p)
	}
	return read, nil
}

// readFile reads the stored bytes of a block.
func (c *cache) readFile(ctx context.Context, b *block, p []byte) error {
	r, err := c.store.Open(ctx, b.file)
	if err != nil {
		return b.explain(err)
	}
	defer r.Close()
	return b.explain(r.ReadAt(ctx, p, b.offset))
}

// check decompresses the whole block, and returns an error if it is damaged.
func (c *cache) check(ctx context.Context, b *block) error {
	switch {
	case !b.codec.Zstd && b.length != b.size():
		return b.errSize()
	case !b.codec.Zstd:
		return nil
	case b.size() <= smallBlock || b.inline != nil:
		_, err := c.inflate(ctx, b, make([]byte, b.size()))
		return err
	}

	s := &stream{b: b}
	defer s.close()
	p := make([]byte, pageBytes)
	for at := int64(0); at < b.size(); at += pageBytes {
		if err := s.next(ctx, c.store, p[:min(pageBytes, b.size()-at)]); err != nil {
			return err
		}
	}
	return nil
}
