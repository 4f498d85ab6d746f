package convert

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// content is a box of a tensor of the source, in the target's dtype.
type content struct {
	s     *source
	entry *entry
	box   tensor.Box
	size  int64 // in bytes
}

func newContent(s *source, e *entry, box tensor.Box) content {
	return content{s: s, entry: e, box: box, size: box.Volume() * int64(e.info.DType.Size())}
}

func (c *content) DType() tensor.DType { return c.entry.info.DType }
func (c *content) Shape() []int64      { return c.box.Sizes }

// fill reads the bytes from off on into p.
func (c *content) fill(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > c.size || int64(len(p)) > c.size-off {
		return fmt.Errorf("%w: %d bytes at %d of %d", tensor.ErrShape, len(p), off, c.size)
	}
	if len(p) == 0 {
		return nil
	}

	w, edges, err := c.wants(nil, p, off)
	if err != nil {
		return err
	}

	proof := c.s.proof
	if len(edges) > 0 {
		proof = nil // p has only some bytes of an element
	}

	if err := proof.sums(ctx, p, c.DType().Size(), func(ctx context.Context) error { return c.s.read(ctx, w) }); err != nil {
		return err
	}

	for _, e := range edges {
		copy(e.to, e.element[e.from:])
	}

	return nil
}

// edge is an element of which only some bytes are wanted.
type edge struct {
	element []byte
	from    int64
	to      []byte
}

// wants appends the reads that fill p with the bytes from off on. Elements of which p
// has only some bytes are read into edges, which the caller copies afterwards.
func (c *content) wants(to []want, p []byte, off int64) ([]want, []edge, error) {
	es := int64(c.DType().Size())
	var edges []edge
	var err error
	cut := func(at, from, n int64) { // the element at, of which n bytes from from on are wanted
		e := edge{element: make([]byte, es), from: from, to: p[at*es+from-off:][:n]}
		edges = append(edges, e)
		if err == nil {
			to, err = c.run(to, e.element, at, at+1)
		}
	}

	lo, hi := off/es, (off+int64(len(p)))/es
	if from := off % es; from != 0 {
		cut(lo, from, min(es-from, int64(len(p))))
		lo++
	}

	if tail := (off + int64(len(p))) % es; tail != 0 && hi >= lo {
		cut(hi, 0, tail)
	}
	if hi > lo && err == nil {
		to, err = c.run(to, p[lo*es-off:hi*es-off], lo, hi)
	}
	return to, edges, err
}

// run appends the reads that fill p with the elements [lo, hi) of the flattened box.
func (c *content) run(to []want, p []byte, lo, hi int64) ([]want, error) {
	boxes, err := tensor.FlatBoxes(c.box.Sizes, lo, hi)
	if err != nil {
		return to, err
	}

	for _, b := range boxes {
		n := b.Volume() * int64(c.DType().Size())
		dst, err := tensor.FromBytes(c.DType(), b.Sizes, p[:n])
		if err != nil {
			return to, err
		}

		p = p[n:]
		if c.s.cast == tensor.CastAny {
			dst = dst.Lossy()
		}
		to = append(to, want{entry: c.entry, box: moved(b, c.box.Offsets), dst: dst})
	}

	return to, nil
}

// moved returns b with by added to its offsets.
func moved(b tensor.Box, by []int64) tensor.Box {
	out := tensor.Box{Offsets: make([]int64, len(b.Offsets)), Sizes: b.Sizes}
	for d := range out.Offsets {
		out.Offsets[d] = b.Offsets[d] + by[d]
	}
	return out
}

// stream is a large content. Its reader reads pieces of one length, one after the other,
// so the next piece is known. If the source is slow, such as one on another host, the
// next pieces are read ahead. Otherwise each piece is read directly into the reader's
// memory: a copy would take longer than the wait.
type stream struct {
	content
	queue []*unit // in the order of their offsets, the next one first
}

var _ plan.Stream = (*stream)(nil)

const (
	// maxAhead bounds the number of pieces of one stream that are read ahead.
	maxAhead = 3
	// slowRate is the highest rate, in bytes per second of one reader, at which a
	// source counts as slow.
	slowRate = 256 << 20
)

// unit is a piece that is being read ahead.
type unit struct {
	off  int64
	p    []byte
	done chan struct{}
	err  error // valid once done is closed
}

// ReadAt implements plan.Stream.
func (st *stream) ReadAt(ctx context.Context, p []byte, off int64) error {
	u := st.next(off, len(p))
	if st.s.slow.Load() || st.s.proof != nil { // the sums of a proof take time as well
		st.readAhead(off+int64(len(p)), int64(len(p)))
	}

	if u == nil {
		return st.straight(ctx, p, off)
	}
	defer st.release(u)

	select {
	case <-u.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	copy(p, u.p)
	return u.err
}

// straight reads directly into p, and measures the time.
func (st *stream) straight(ctx context.Context, p []byte, off int64) error {
	start := time.Now()
	err := st.fill(ctx, p, off)
	if len(p) >= minUnit {
		st.s.slow.Store(time.Since(start) > time.Duration(len(p))*time.Second/slowRate)
	}
	return err
}

// next takes the piece for n bytes at off out of the queue, or returns nil. It drops
// pieces that were read ahead in vain.
func (st *stream) next(off int64, n int) *unit {
	for len(st.queue) > 0 {
		u := st.queue[0]
		if u.off == off && len(u.p) >= n {
			st.queue = st.queue[1:]
			return u
		}
		st.queue = st.queue[1:]
		st.release(u)
	}
	return nil
}

// readAhead begins to read the pieces of that length from off on, as long as there are
// buffers.
func (st *stream) readAhead(off, n int64) {
	if n > int64(st.s.ahead.Size()) || n < minUnit {
		return
	}

	if k := len(st.queue); k > 0 {
		off = st.queue[k-1].off + int64(len(st.queue[k-1].p))
	}

	for len(st.queue) < maxAhead && off < st.size {
		buf := st.s.ahead.TryGet()
		if buf == nil {
			return
		}
		u := &unit{off: off, p: buf[:min(n, st.size-off)], done: make(chan struct{})}
		st.s.inBackground(func(ctx context.Context) error { return st.fill(ctx, u.p, u.off) },
			func(err error) { u.err = err; close(u.done) })
		st.queue = append(st.queue, u)
		off += int64(len(u.p))
	}
}

// release returns the buffer of a piece after its read has ended.
func (st *stream) release(u *unit) {
	select {
	case <-u.done:
		st.s.ahead.Put(u.p)
	default:
		st.s.wg.Go(func() {
			<-u.done
			st.s.ahead.Put(u.p)
		})
	}
}

// Close implements plan.Stream.
func (st *stream) Close() error {
	for _, u := range st.queue {
		st.release(u)
	}
	st.queue = nil
	return nil
}

// maxBatch bounds the number of items of a batch.
const maxBatch = 4096

// batch is a number of small items of one rank that are read at once. A checkpoint may
// have a hundred thousand tensors of a few kilobytes. A read of each would cost more
// than its bytes. In a batch, neighbours are one read.
type batch struct {
	items []*plan.WriteItem // one after the other in the batch's bytes
	total int64
	next  *batch

	// The rest is guarded by batches.mu.
	buf    []byte // nil: not read
	loaded chan struct{}
	err    error // valid once loaded is closed
	users  int   // streams that copy from buf, and the one that fills it
	left   int   // items that no stream has read yet
	used   int64 // the clock at its last use
}

// batches are the batches of one run.
type batches struct {
	s     *source
	job   *Job
	mu    sync.Mutex
	clock int64           // guarded by mu
	live  map[*batch]bool // batches with a buffer; guarded by mu
	// of are the positions of the small items. It does not change.
	of map[*plan.WriteItem]spot
}

// spot is the position of an item in the bytes of a batch.
type spot struct {
	b   *batch
	off int64
}

// newBatches returns the batches of the ranks' plans. The writers resolve the items.
func newBatches(s *source, j *Job, plans []*plan.SavePlan) *batches {
	n := 0
	for _, p := range plans {
		n += len(p.Items)
	}

	bs := &batches{s: s, job: j, live: map[*batch]bool{}, of: make(map[*plan.WriteItem]spot, n)}
	for _, p := range plans {
		open := map[int]*batch{} // by the size of elements, since writers order files by it
		for i := range p.Items {
			it := &p.Items[i]
			if n := it.NumBytes(); it.Kind != plan.KindBytes && n > 0 && n <= int64(s.ahead.Size())/4 {
				bs.add(open, it)
			}
		}
	}

	return bs
}

// add adds a small item to the open batch of its kind, or to a new one.
func (bs *batches) add(open map[int]*batch, it *plan.WriteItem) {
	es := it.Info.DType.Size()
	b := open[es]
	if b == nil || b.total+it.NumBytes() > int64(bs.s.ahead.Size()) || len(b.items) >= maxBatch {
		full := b
		b = &batch{}
		open[es] = b
		if full != nil {
			full.next = b
		}
	}

	bs.of[it] = spot{b, b.total}
	b.items = append(b.items, it)
	b.total += it.NumBytes()
	b.left++
}

// open returns the content of an item of a tensor. Large items, and items that are not
// in the plans, are not read in batches.
func (bs *batches) open(e *entry, it *plan.WriteItem) plan.Stream {
	c := newContent(bs.s, e, it.Box)
	at, small := bs.of[it]
	if !small {
		return &stream{content: c}
	}
	return &batchStream{content: c, bs: bs, b: at.b, off: at.off}
}

// take makes sure that b is read or being read, and counts a user. It returns false if
// there is no memory for it.
func (bs *batches) take(b *batch) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()

	bs.clock++
	b.used = bs.clock
	if b.buf == nil && !bs.load(b, true) {
		return false
	}

	b.users++
	if n := b.next; n != nil && n.buf == nil && n.left > 0 {
		bs.load(n, false)
	}
	return true
}

// load begins to read b if there is memory for it. If need is set, it may free the
// memory of another batch. The caller holds mu.
func (bs *batches) load(b *batch, need bool) bool {
	buf := bs.s.ahead.TryGet()
	if buf == nil && need && bs.evict() {
		buf = bs.s.ahead.TryGet()
	}
	if buf == nil {
		return false
	}

	b.buf, b.loaded, b.err = buf, make(chan struct{}), nil
	bs.live[b] = true
	b.users++ // the read
	bs.s.inBackground(
		func(ctx context.Context) error { return bs.read(ctx, b, buf) },
		func(err error) {
			b.err = err
			close(b.loaded)
			bs.drop(b, 0)
		})
	return true
}

// read fills buf with the bytes of b.
func (bs *batches) read(ctx context.Context, b *batch, buf []byte) error {
	wants := make([]want, 0, len(b.items))
	whole := buf[:b.total]
	for _, it := range b.items {
		c := newContent(bs.s, bs.job.find(it.FQN()), it.Box)
		var err error
		if wants, err = c.run(wants, buf[:c.size], 0, c.box.Volume()); err != nil {
			return err
		}
		buf = buf[c.size:]
	}

	// All items of a batch have elements of one size.
	return bs.s.proof.sums(ctx, whole, b.items[0].Info.DType.Size(), func(ctx context.Context) error { return bs.s.read(ctx, wants) })
}

// evict frees the least recently used buffer that is not in use. The caller
// holds mu.
func (bs *batches) evict() bool {
	var oldest *batch
	for b := range bs.live {
		if b.users == 0 && (oldest == nil || b.used < oldest.used) {
			oldest = b
		}
	}

	if oldest == nil {
		return false
	}

	bs.free(oldest)
	return true
}

// free returns the buffer of a batch. The caller holds mu.
func (bs *batches) free(b *batch) {
	bs.s.ahead.Put(b.buf)
	b.buf = nil
	delete(bs.live, b)
}

// drop ends a use of b. items is the number of items that are not needed again.
func (bs *batches) drop(b *batch, items int) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b.users--
	b.left -= items
	if b.users == 0 && b.left <= 0 && b.buf != nil {
		bs.free(b)
	}
}

// close frees all buffers. All reads have ended.
func (bs *batches) close() {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for b := range bs.live {
		bs.free(b)
	}
}

// batchStream is one item of a batch.
type batchStream struct {
	content
	bs   *batches
	b    *batch
	off  int64
	held bool // counts as a user
}

var _ plan.Stream = (*batchStream)(nil)

// ReadAt implements plan.Stream. If there is no memory for the batch, or if an item of
// it cannot be read, this item is read by itself.
func (st *batchStream) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > st.size || int64(len(p)) > st.size-off {
		return st.fill(ctx, p, off) // which returns the error
	}

	if !st.held {
		if !st.bs.take(st.b) {
			return st.fill(ctx, p, off)
		}
		st.held = true
	}

	select {
	case <-st.b.loaded:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	if st.b.err != nil {
		return st.fill(ctx, p, off)
	}

	copy(p, st.b.buf[st.off+off:])
	return nil
}

// Close implements plan.Stream.
func (st *batchStream) Close() error {
	if st.held {
		st.held = false
		st.bs.drop(st.b, 1)
	}
	return nil
}
