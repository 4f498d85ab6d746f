package reading

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// leastBytes is the number of bytes that one read may take even if the budget is
	// smaller.
	leastBytes = 1 << 20
	// pageBytes is the size of a page. A smaller hole between two ranges is read with
	// them: no medium reads less than a page.
	pageBytes = 4 << 10
	// smallBytes is the size up to which a range is read into a buffer, together with
	// its neighbours. Larger ranges are read directly into the memory of the receiver.
	smallBytes = 256 << 10
	// slowReads is the number of reads at the same time if requests take long compared
	// with the bytes that they read.
	slowReads = 16
)

// limits determine how chunks are cut into reads. Tests use small limits.
type limits struct {
	most  int64 // the largest size of one read
	gap   int64 // the largest hole that is read rather than skipped
	small int64 // the largest range that is read together with its neighbours
}

// batch is the work of one call of Read.
type batch struct {
	c        *Checkpoint
	dst      storage.Receiver
	opts     storage.ReadOptions
	limits   limits
	storeGap int64 // the gap that the store asks for; if it is not zero, requests are expensive
	tiled    bool  // reads are rounded out to tiles, so only storeGap joins requests
	cached   bool  // read through the operating system's cache
	jobs     []*job
	requests []Request
	tasks    []task
	records  map[recordID]string // records that are used, with the name of a tensor in each
	stats    storage.ReadStats
	progress work.Share
}

// task is work other than reading a range. It returns the number of bytes that it
// read.
type task func(ctx context.Context) (read int64, err error)

func newBatch(c *Checkpoint, dst storage.Receiver, o storage.ReadOptions) *batch {
	b := &batch{c: c, dst: dst, opts: o, limits: limits{maxBytes, pageBytes - 1, smallBytes}, records: map[recordID]string{}}
	for b.limits.most > leastBytes && b.limits.most > o.Budget() {
		b.limits.most /= 2
	}

	if g, ok := blob.As[blob.GapReader](c.store); ok {
		b.storeGap = g.ReadGap()
		b.limits.gap = max(b.limits.gap, b.storeGap)
		if o.Parallel == 0 {
			b.opts.Parallel = max(slowReads, o.Workers())
		}
	}
	return b
}

// add adds one item to the batch. It does not read files.
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
	return b.addJob(&job{item: it, id: ChunkID{e, i}, box: it.SourceBox()})
}

func (b *batch) addValue(it *plan.ReadItem, e *meta.Entry) error {
	switch {
	case e.Bytes == nil:
		return fmt.Errorf("%w: it is a tensor in the checkpoint", plan.ErrMismatch)
	case e.Bytes.Inline != nil:
		return b.dst.LoadBytes(it, e.Bytes.Codec, e.Bytes.Inline)
	case b.c.src.Value == nil:
		return b.addJob(&job{item: it, id: ChunkID{Entry: e}, box: tensor.Whole([]int64{e.Bytes.Size})})
	}

	b.stats.Needed += e.Bytes.Size
	b.stats.Rounded += e.Bytes.Size
	b.tasks = append(b.tasks, func(ctx context.Context) (int64, error) {
		codec, data, err := b.c.src.Value(ctx, e)
		if err != nil {
			return 0, plan.Named(e.FQN, err)
		}
		b.progress.Add(e.Bytes.Size)
		return e.Bytes.Loc.Length, b.dst.LoadBytes(it, codec, data)
	})
	return nil
}

func (b *batch) addJob(j *job) error {
	j.b = b
	j.sizes, j.dtype = j.id.elements()
	if err := j.box.Check(j.sizes); err != nil {
		return err
	}
	b.stats.Needed += j.weight(j.box)
	b.jobs = append(b.jobs, j)
	return nil
}

// run reads all items that were added.
func (b *batch) run(ctx context.Context) error {
	if err := b.locate(ctx); err != nil {
		return err
	}

	for _, j := range b.jobs { // locate has checked all of them, so memory can be allocated
		if err := j.begin(ctx); err != nil {
			return plan.Named(j.id.Entry.FQN, err)
		}
	}

	b.progress.Tell, b.progress.Plan, b.progress.Total = b.opts.Progress, b.stats.Needed, b.stats.Rounded
	gap := b.limits.gap
	if b.tiled {
		gap = b.storeGap
	}

	st, err := Fetch(ctx, b.requests, FetchOptions{
		Open: b.c.openFile, ReadOptions: b.opts, Gap: gap, Cached: b.cached, Slow: b.storeGap > 0, Done: b.progress.Add,
	})
	b.stats.Read, b.stats.Requests = st.Bytes, st.Requests

	if err == nil {
		err = b.compareRecords(ctx)
	}
	if err != nil {
		return err
	}
	return b.runTasks(ctx)
}

// locate gets the places of the chunks from the source and checks them. If the source
// has to read files for that, locate asks for each chunk only once, even if several
// items need it.
func (b *batch) locate(ctx context.Context) error {
	var ids []ChunkID
	jobs := map[ChunkID][]*job{}
	for _, j := range b.jobs {
		switch {
		case j.box.Empty():
			continue
		case b.c.src.Places == nil:
			var err error
			if j.at, j.lay, err = b.c.locate(ctx, j.id); err != nil {
				return err
			}
			continue
		case jobs[j.id] == nil:
			ids = append(ids, j.id)
		}
		jobs[j.id] = append(jobs[j.id], j)
	}

	return b.c.src.places(ctx, ids, b.opts, func(n int, at Place) error {
		l, err := b.c.layout(ids[n], at)
		for _, j := range jobs[ids[n]] {
			j.at, j.lay = at, l
		}
		return err
	})
}

// taskBytes returns the bytes of memory for each of the tasks that run at the same time.
func (b *batch) taskBytes() int64 {
	return max(leastBytes, b.opts.Budget()/int64(b.opts.Workers()))
}

// runTasks runs the tasks in parallel.
func (b *batch) runTasks(ctx context.Context) error {
	var read, done atomic.Int64
	err := work.Each(ctx, len(b.tasks), b.opts.Workers(), func(ctx context.Context, i int) error {
		n, err := b.tasks[i](ctx)
		read.Add(n)
		done.Add(1)
		return err
	})

	b.stats.Read += read.Load()
	b.stats.Requests += done.Load()
	return err
}

// job is the read of one item of the plan. It is finished when the last of its parts
// is finished.
type job struct {
	b     *batch
	item  *plan.ReadItem // nil: no receiver gets the item, see ReadBox
	id    ChunkID
	sizes []int64 // of the chunk
	dtype tensor.DType
	box   tensor.Box // relative to the chunk
	at    Place
	lay   *layout // of a region without tiles
	to    *tensor.Tensor
	left  atomic.Int64
}

// weight returns the number of bytes of a part of the item, in the dtype of the plan.
func (j *job) weight(part tensor.Box) int64 { return part.Volume() * int64(j.dtype.Size()) }

// begin gets the memory that the item is read into and plans its reads.
func (j *job) begin(ctx context.Context) error {
	if err := j.resolve(ctx); err != nil {
		return err
	}

	switch r := j.at.Region; {
	case j.box.Empty():
		return j.deliver()
	case r == nil:
		return j.addDecodes()
	case r.Tiles != nil:
		j.addTiles(r)
		return nil
	}

	return j.addParts()
}

// resolve gets the memory that the item is read into: a new buffer for a value, the
// memory of the receiver for a tensor.
func (j *job) resolve(ctx context.Context) (err error) {
	if j.id.Entry.Bytes != nil {
		if err := j.b.c.CheckHeld(ctx, j.id.Entry); err != nil {
			return err
		}
		j.to, err = tensor.FromBytes(tensor.Uint8, j.sizes, make([]byte, j.sizes[0]))
		return err
	}

	if j.to, err = j.b.dst.ResolveTensor(j.item); err != nil {
		return err
	}
	if j.to == nil || !slices.Equal(j.to.Shape(), j.item.Lengths) {
		return fmt.Errorf("%w: the planner's ResolveTensor returned %v for a box of %v", plan.ErrProtocol, j.to, j.item.Lengths)
	}
	return nil
}

// addTiles plans the reads of a region with tiles.
func (j *job) addTiles(r *Region) {
	j.b.tiled = true
	var mem []byte
	if j.to.DType() == r.DType {
		mem, _ = j.to.Bytes()
	}

	spans := r.Tiles.Cover(j.box, j.b.limits.most, j.b.storeGap)
	j.left.Store(int64(len(spans)))
	for i := range spans {
		s := &spans[i]
		j.b.stats.Rounded += s.Bytes
		t := &tiles{job: j, span: s}
		q := Request{File: r.File, Offset: r.Offset + s.Offset, Width: s.Width, Weight: s.Bytes, To: t}
		if s.Rows > 1 && s.Width < s.Pitch {
			q.Rows = []Axis{{Count: s.Rows, Pitch: s.Pitch}}
		} else {
			q.Width *= s.Rows
			if mem != nil && s.At >= 0 && q.Width > j.b.limits.small {
				q.Direct, t.in = mem[s.At:s.At+q.Width], true
			}
		}

		j.b.requests = append(j.b.requests, q)
	}
}

// addDecodes plans the calls of a Decoder.
func (j *job) addDecodes() error {
	for _, box := range j.at.Decoder.Cut(j.box, j.b.taskBytes()) {
		j.left.Add(1)
		to, err := j.to.Narrow(box.Relative(j.box.Offsets))
		if err != nil {
			return err
		}

		j.b.stats.Rounded += j.weight(box)
		j.b.tasks = append(j.b.tasks, func(ctx context.Context) (int64, error) {
			n, err := j.at.Decoder.Decode(ctx, box, to, j.b.taskBytes())
			if err != nil {
				return n, plan.Named(j.id.Entry.FQN, err)
			}
			j.b.progress.Add(j.weight(box))
			return n, j.partDone()
		})
	}
	return nil
}

// partDone is called after each part of the item. After the last part, it passes the
// item to the receiver.
func (j *job) partDone() error {
	if j.left.Add(-1) > 0 || j.item == nil {
		return nil
	}
	return j.deliver()
}

func (j *job) deliver() error {
	if v := j.id.Entry.Bytes; v != nil {
		data, _ := j.to.Bytes()
		return j.b.dst.LoadBytes(j.item, v.Codec, data)
	}
	return j.b.dst.CommitTensor(j.item, j.to)
}
