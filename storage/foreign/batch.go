package foreign

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/fetch"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// leastBytes is how much one read may take, whatever the budget.
	leastBytes = 1 << 20
	// pageBytes is the smallest hole worth skipping: whatever the medium, it
	// reads no less.
	pageBytes = 4 << 10
)

// batch is the work of one load on one rank.
type batch struct {
	c        *Checkpoint
	dst      storage.Receiver
	opts     storage.ReadOptions
	tell     func(int64)
	meas     measures
	dear     bool // requests are
	cached   bool // read through the system's cache
	jobs     []*job
	requests []fetch.Request
	tasks    []task
	stats    storage.ReadStats
}

// job is one item of the plan on its way. It is finished when the last of its
// parts is.
type job struct {
	b     *batch
	item  *plan.ReadItem
	entry *meta.Entry
	chunk int
	box   tensor.Box // relative to the chunk
	at    Chunk
	lay   *layout // of a region
	to    *tensor.Tensor
	left  atomic.Int64
}

// task is work that is not a read of a range: it counts its own bytes.
type task func(ctx context.Context) (read int64, err error)

func newBatch(c *Checkpoint, dst storage.Receiver, o storage.ReadOptions, cached bool, tell func(int64)) *batch {
	b := &batch{c: c, dst: dst, opts: o, cached: cached, tell: tell}
	b.meas, b.dear = measuresOf(c.store, o.BufferBytes)
	return b
}

// add takes up one item. Nothing is read yet.
func (b *batch) add(it *plan.ReadItem, e *meta.Entry) error {
	if it.Kind == plan.KindBytes {
		return b.addValue(it, e)
	}
	if e.Tensor == nil {
		return fmt.Errorf("%w: it is a value in the checkpoint", plan.ErrMismatch)
	}
	i, ok := e.Tensor.FindChunk(it.Source.Offset, it.Source.Hint)
	if !ok {
		return fmt.Errorf("%w: no chunk at %v", plan.ErrMismatch, it.Source.Offset)
	}
	j := &job{b: b, item: it, entry: e, chunk: i, box: it.SourceBox()}
	if err := j.box.Check(e.Tensor.Chunks[i].Sizes); err != nil {
		return err
	}
	b.stats.Needed += j.weight(j.box)
	b.jobs = append(b.jobs, j)
	return nil
}

// addValue takes up a value.
func (b *batch) addValue(it *plan.ReadItem, e *meta.Entry) error {
	if e.Bytes == nil {
		return fmt.Errorf("%w: it is a tensor in the checkpoint", plan.ErrMismatch)
	}
	if e.Bytes.Inline != nil {
		return b.dst.LoadBytes(it, e.Bytes.Codec, e.Bytes.Inline)
	}
	if b.c.src.Value == nil {
		return fmt.Errorf("%w: a value in a format without any", storage.ErrCorrupt)
	}
	b.stats.Needed += e.Bytes.Size
	b.tasks = append(b.tasks, func(ctx context.Context) (int64, error) {
		codec, data, err := b.c.src.Value(ctx, e)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", e.FQN, err)
		}
		b.done(e.Bytes.Size)
		return e.Bytes.Loc.Length, b.dst.LoadBytes(it, codec, data)
	})
	return nil
}

// weight returns the bytes of the plan that a part of the item stands for.
func (j *job) weight(part tensor.Box) int64 {
	return part.Volume() * int64(j.entry.Tensor.DType.Size())
}

// done tells of bytes of the plan that were moved.
func (b *batch) done(weight int64) {
	if b.tell != nil && weight > 0 {
		b.tell(weight)
	}
}

// run carries out all that was added.
func (b *batch) run(ctx context.Context) (storage.ReadStats, error) {
	b.stats.Rounded = b.stats.Needed
	if err := b.locate(ctx); err != nil {
		return b.stats, err
	}
	for _, j := range b.jobs { // all are known to be sound: now memory may be taken
		if err := j.begin(); err != nil {
			return b.stats, fmt.Errorf("%q: %w", j.entry.FQN, err)
		}
	}
	st, err := fetch.Run(ctx, b.requests, fetch.Options{
		Open: b.c.openFile, BufferBytes: b.opts.BufferBytes, Parallel: b.opts.Parallel, Gap: b.meas.gap, Cached: b.cached, Dear: b.dear,
		Done: b.done,
	})
	b.stats.Read, b.stats.Requests = st.Bytes, st.Requests
	if err != nil {
		return b.stats, err
	}
	return b.stats, b.runTasks(ctx)
}

// locate asks the source where the chunks lie, for each chunk once, and checks
// what it says.
func (b *batch) locate(ctx context.Context) error {
	var ids []ChunkID
	var same [][]*job // by the number of their chunk in ids
	numbers := map[ChunkID]int{}
	for _, j := range b.jobs {
		if j.box.Empty() {
			continue
		}
		id := ChunkID{j.entry, j.chunk}
		n, ok := numbers[id]
		if !ok {
			n = len(ids)
			numbers[id], ids, same = n, append(ids, id), append(same, nil)
		}
		same[n] = append(same[n], j)
	}
	err := b.c.locateAll(ctx, ids, b.opts, func(n int, at Chunk, lay *layout) {
		for _, j := range same[n] {
			j.at, j.lay = at, lay
		}
	})
	if err != nil {
		return err
	}
	return context.Cause(ctx)
}

// begin gets hold of the memory of an item and plans its reads.
func (j *job) begin() error {
	b := j.b
	var err error
	if j.to, err = b.dst.ResolveTensor(j.item); err != nil {
		return err
	}
	if j.to == nil || !slices.Equal(j.to.Shape(), j.item.Lengths) {
		return fmt.Errorf("%w: the planner gave %v for a box of %v", plan.ErrProtocol, j.to, j.item.Lengths)
	}
	switch {
	case j.box.Empty():
		return b.dst.CommitTensor(j.item, j.to)
	case j.lay != nil:
		return j.addRequests()
	}
	return j.addMakes()
}

// addRequests plans the reads of a region.
func (j *job) addRequests() error {
	parts, err := partsOf(j.lay, j.at.Region, j.box, j.to, j.b.meas)
	if err != nil {
		return err
	}
	j.left.Store(int64(len(parts)))
	for _, p := range parts {
		p.name, p.sums, p.after = j.entry.FQN, j.b.c.sums, j.settle
		q := p.request()
		q.Weight = j.weight(p.box)
		j.b.requests = append(j.b.requests, q)
	}
	return nil
}

// settle ends a part. The last of an item hands it over.
func (j *job) settle() error {
	if j.left.Add(-1) > 0 {
		return nil
	}
	return j.b.dst.CommitTensor(j.item, j.to)
}
