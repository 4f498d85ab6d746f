package native

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// batch is the work of one load on one rank.
type batch struct {
	store    blob.Store
	dst      storage.Receiver
	most     int64 // bytes of one read
	gap      int64 // bytes that are better read than skipped
	requests []request
	stats    storage.ReadStats
}

// readBytes is the largest single read.
const readBytes = 8 << 20

// newBatch returns an empty batch whose reads need no larger buffers than the
// budget allows.
func newBatch(s blob.Store, dst storage.Receiver, budget int64) *batch {
	b := &batch{store: s, dst: dst, most: readBytes}
	for b.most > stripeBytes && b.most > budget {
		b.most /= 2
	}
	if g, ok := blob.As[blob.GapReader](s); ok {
		b.gap = g.ReadGap()
	}
	return b
}

// request is one range of a file to be read, or rows of one width that lie a
// pitch apart, and what becomes of the bytes.
type request struct {
	file   string
	offset int64
	width  int64
	rows   int64 // 1: one run of width bytes
	pitch  int64
	// direct is the memory that the bytes belong into as they are. Nil: take
	// copies them.
	direct  []byte
	rounded int64 // bytes of the tiles that hold what is wanted
	job     *job
	span    span
}

// bytes returns how much the request reads.
func (q *request) bytes() int64 { return q.width * q.rows }

// job is one item of the plan on its way. It is finished when the last of its
// requests is.
type job struct {
	item  *plan.ReadItem
	fqn   string
	loc   *meta.Location
	grid  grid
	sizes []int64
	dtype tensor.DType
	box   tensor.Box
	to    *tensor.Tensor
	value []byte // of a value: the bytes, complete when left is zero
	codec string
	left  atomic.Int64
}

// add plans the reads of one item.
func (b *batch) add(ctx context.Context, it *plan.ReadItem, e *meta.Entry) error {
	if it.Kind == plan.KindBytes {
		return b.addValue(ctx, it, e)
	}
	return b.addTensor(it, e)
}

// addValue plans the read of a value.
func (b *batch) addValue(ctx context.Context, it *plan.ReadItem, e *meta.Entry) error {
	if e.Bytes == nil {
		return fmt.Errorf("%w: it is a tensor in the checkpoint", plan.ErrMismatch)
	}
	v := e.Bytes
	if v.Inline != nil {
		return b.dst.LoadBytes(it, v.Codec, v.Inline)
	}
	j := &job{
		item: it, fqn: e.FQN, loc: &v.Loc, sizes: []int64{v.Size}, dtype: tensor.Uint8,
		box: tensor.Whole([]int64{v.Size}), codec: v.Codec, grid: gridOf([]int64{v.Size}, 1),
	}
	if err := j.check(); err != nil {
		return err
	}
	if v.Size == 0 {
		return b.dst.LoadBytes(it, v.Codec, []byte{})
	}
	err := checkHeld(ctx, b.store, v.Size, []meta.Location{v.Loc})
	if err != nil {
		return err
	}
	j.value = make([]byte, v.Size)
	if j.to, err = tensor.FromBytes(tensor.Uint8, j.sizes, j.value); err != nil {
		return err
	}
	b.addJob(j)
	return nil
}

// addTensor plans the reads of one box of one chunk.
func (b *batch) addTensor(it *plan.ReadItem, e *meta.Entry) error {
	if e.Tensor == nil {
		return fmt.Errorf("%w: it is a value in the checkpoint", plan.ErrMismatch)
	}
	t := e.Tensor
	i, ok := t.FindChunk(it.Source.Offset, it.Source.Hint)
	if !ok {
		return fmt.Errorf("%w: no chunk at %v", plan.ErrMismatch, it.Source.Offset)
	}
	j := &job{
		item: it, fqn: e.FQN, loc: &t.Locs[i], sizes: t.Chunks[i].Sizes, dtype: t.DType,
		box: it.SourceBox(), grid: gridOf(t.Chunks[i].Sizes, int64(t.DType.Size())),
	}
	if err := j.check(); err != nil {
		return err
	}
	var err error
	if j.to, err = b.dst.ResolveTensor(it); err != nil {
		return err
	}
	if j.to == nil || !slices.Equal(j.to.Shape(), it.Lengths) {
		return fmt.Errorf("%w: the planner gave %v for a box of %v", plan.ErrState, j.to, it.Lengths)
	}
	if j.box.Empty() {
		return b.dst.CommitTensor(it, j.to)
	}
	b.addJob(j)
	return nil
}

// check refuses a job whose location contradicts its shape.
func (j *job) check() error {
	if err := j.box.Check(j.sizes); err != nil {
		return err
	}
	if j.loc.Length != j.grid.total || int64(len(j.loc.Sums)) != j.grid.tiles() {
		return fmt.Errorf("%w: %d bytes and %d checksums for a chunk of %d and %d",
			storage.ErrCorrupt, j.loc.Length, len(j.loc.Sums), j.grid.total, j.grid.tiles())
	}
	return nil
}

// smallBytes is the size up to which a range is read together with its
// neighbours rather than into its own place.
const smallBytes = 256 << 10

// addJob adds the requests that a job needs.
func (b *batch) addJob(j *job) {
	elem := int64(j.dtype.Size())
	lo, hi, flat := flatRange(j.sizes, j.box, elem)
	var mem []byte
	if flat && j.to.DType() == j.dtype {
		mem, _ = j.to.Bytes()
	}
	spans := j.grid.cover(j.sizes, elem, j.box, b.most)
	j.left.Store(int64(len(spans)))
	b.stats.Needed += j.box.Volume() * elem
	for _, s := range spans {
		rounded := j.grid.bytes(s)
		b.stats.Rounded += rounded
		if !j.grid.contiguous(s) && j.grid.pitch-j.grid.width(s) <= b.gap {
			s.band0, s.band1 = 0, j.grid.bands() // one read instead of one for each row
		}
		q := request{
			file: j.loc.File, offset: j.loc.Offset + j.grid.start(s), width: j.grid.width(s),
			rows: s.row1 - s.row0, pitch: j.grid.pitch, rounded: rounded, job: j, span: s,
		}
		if j.grid.contiguous(s) {
			q.width, q.rows = q.width*q.rows, 1
			from := j.grid.start(s)
			if mem != nil && q.width > smallBytes && from >= lo && from+q.width <= hi {
				q.direct = mem[from-lo : from-lo+q.width]
			}
		}
		b.requests = append(b.requests, q)
	}
}

// take verifies the bytes of a request and puts them where they belong.
func (b *batch) take(q *request, p []byte) error {
	sums := q.job.grid.newSums(q.span)
	sums.add(p)
	return b.settle(q, sums, p)
}

// settle ends a request whose bytes p have these checksums. The last request of
// a job hands it over.
func (b *batch) settle(q *request, sums *spanSums, p []byte) error {
	j := q.job
	if !sums.match(j.loc.Sums) {
		return fmt.Errorf("%w: %q: checksum of %s at %d+%d", storage.ErrCorrupt, j.fqn, q.file, q.offset, q.bytes())
	}
	if q.direct == nil {
		if err := j.grid.fill(j.to, j.sizes, j.dtype, j.box, q.span, p); err != nil {
			return fmt.Errorf("%q: %w", j.fqn, err)
		}
	}
	if j.left.Add(-1) > 0 {
		return nil
	}
	if j.value != nil {
		return b.dst.LoadBytes(j.item, j.codec, j.value)
	}
	return b.dst.CommitTensor(j.item, j.to)
}
