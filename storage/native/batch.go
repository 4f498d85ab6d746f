package native

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/progress"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/fetch"
	"github.com/cairn-ckpt/cairn/tensor"
)

// batch is the work of one load on one rank.
type batch struct {
	store    blob.Store
	dst      storage.Receiver
	most     int64 // bytes of one read
	gap      int64 // bytes that are better read than skipped
	requests []fetch.Request
	stats    storage.ReadStats
}

// newBatch returns an empty batch whose reads need no larger buffers than the
// budget allows.
func newBatch(s blob.Store, dst storage.Receiver, budget int64) *batch {
	b := &batch{store: s, dst: dst, most: fetch.MaxBytes}
	for b.most > stripeBytes && b.most > budget {
		b.most /= 2
	}
	if g, ok := blob.As[blob.GapReader](s); ok {
		b.gap = g.ReadGap()
	}
	return b
}

// tiles is a span of an item's chunk on its way.
type tiles struct {
	job  *job
	span span
	in   bool      // the bytes are read into their place
	sums *spanSums // of those that were seen on the way
}

var _ fetch.Stepper = (*tiles)(nil)

// job is one item of the plan on its way. It is finished when the last of its
// requests is.
type job struct {
	b     *batch
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
		b: b, item: it, fqn: e.FQN, loc: &v.Loc, sizes: []int64{v.Size}, dtype: tensor.Uint8,
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
		b: b, item: it, fqn: e.FQN, loc: &t.Locs[i], sizes: t.Chunks[i].Sizes, dtype: t.DType,
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
		return fmt.Errorf("%w: the planner gave %v for a box of %v", plan.ErrProtocol, j.to, it.Lengths)
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
		t := &tiles{job: j, span: s}
		q := fetch.Request{
			File: j.loc.File, Offset: j.loc.Offset + j.grid.start(s), Width: j.grid.width(s), Weight: rounded, To: t,
		}
		if rows := s.row1 - s.row0; !j.grid.contiguous(s) {
			q.Rows = []fetch.Axis{{Count: rows, Pitch: j.grid.pitch}}
		} else {
			q.Width *= rows
			from := j.grid.start(s)
			if mem != nil && q.Width > smallBytes && from >= lo && from+q.Width <= hi {
				q.Direct, t.in = mem[from-lo:from-lo+q.Width], true
			}
		}
		b.requests = append(b.requests, q)
	}
}

// Step computes the checksums of bytes that are read into their place.
func (t *tiles) Step(p []byte) {
	if t.sums == nil {
		t.sums = t.job.grid.newSums(t.span)
	}
	t.sums.add(p)
}

// Take verifies the bytes of a span and puts them where they belong. The last
// span of an item hands it over.
func (t *tiles) Take(p []byte) error {
	j := t.job
	if t.sums == nil {
		t.Step(p)
	}
	if !t.sums.match(j.loc.Sums) {
		return fmt.Errorf("%w: %q: checksum of %s at %d+%d", storage.ErrCorrupt, j.fqn, j.loc.File, j.loc.Offset+j.grid.start(t.span), len(p))
	}
	t.sums = nil
	if !t.in {
		if err := j.grid.fill(j.to, j.sizes, j.dtype, j.box, t.span, p); err != nil {
			return fmt.Errorf("%q: %w", j.fqn, err)
		}
	}
	if j.left.Add(-1) > 0 {
		return nil
	}
	if j.value != nil {
		return j.b.dst.LoadBytes(j.item, j.codec, j.value)
	}
	return j.b.dst.CommitTensor(j.item, j.to)
}

// run carries the requests out.
func (b *batch) run(ctx context.Context, opts ReaderOptions, cached bool, tell func(int64)) (storage.ReadStats, error) {
	told := &progress.Share{Tell: tell, Plan: b.stats.Needed, Total: b.stats.Rounded}
	st, err := fetch.Run(ctx, b.requests, fetch.Options{
		Open: b.open, BufferBytes: opts.BufferBytes, Parallel: opts.Parallel, Gap: b.gap, Cached: cached, Dear: b.gap > 0,
		Done: told.Add,
	})
	b.stats.Read, b.stats.Requests = st.Bytes, st.Requests
	return b.stats, err
}

// open opens a data file.
func (b *batch) open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := b.store.Open(ctx, name)
	if err != nil {
		return nil, goneError(ctx, b.store, name, err)
	}
	return r, nil
}
