package convert

import (
	"context"
	"sync"

	"github.com/cairn-ckpt/cairn/plan"
)

// maxBatch bounds the number of items of a batch.
const maxBatch = 4096

// batch is some small items of one rank that are read at once. A checkpoint may
// have a hundred thousand tensors of a few kilobytes, and each read by itself
// would cost more than its bytes; read together with those that will be asked for
// next, what lies side by side is one read.
type batch struct {
	items []*plan.WriteItem // one after the other in the batch's bytes
	total int64
	next  *batch

	// The rest is guarded by batches.mu.
	buf    []byte // nil: not read
	loaded chan struct{}
	err    error // valid once loaded is closed
	users  int   // streams that copy from buf, and the one that fills it
	left   int   // items that nobody has taken yet
	used   int64 // when it was last asked for
}

// batches are those of one run.
type batches struct {
	s     *source
	job   *Job
	mu    sync.Mutex
	clock int64           // guarded by mu
	live  map[*batch]bool // those that have a buffer; guarded by mu
	// of are the places of the small items. It is not changed once made.
	of map[*plan.WriteItem]spot
}

// spot is the place of an item in the bytes of a batch.
type spot struct {
	b   *batch
	off int64
}

// newBatches returns the batches of the ranks' plans, whose items the writers
// resolve.
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
			if n := it.NumBytes(); it.Kind != plan.KindBytes && n > 0 && n <= s.ahead.size()/4 {
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
	if b == nil || b.total+it.NumBytes() > bs.s.ahead.size() || len(b.items) >= maxBatch {
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

// open returns the content of an item of a tensor. An item that is not in one of
// the plans, such as a copy of such an item, is read by itself.
func (bs *batches) open(e *entry, it *plan.WriteItem) plan.Stream {
	c := newContent(bs.s, e, it.Box)
	at, small := bs.of[it]
	if !small {
		return &stream{content: c}
	}
	return &batchStream{content: c, bs: bs, b: at.b, off: at.off}
}

// take makes sure that b is read or being read, and counts a user. It reports
// false where there is no memory for it.
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

// load begins to read b if there is memory for it, or, if need be, another batch
// can do without its own. It needs mu.
func (bs *batches) load(b *batch, need bool) bool {
	buf := bs.s.ahead.try()
	if buf == nil && need && bs.evict() {
		buf = bs.s.ahead.try()
	}
	if buf == nil {
		return false
	}
	b.buf, b.loaded, b.err = buf, make(chan struct{}), nil
	bs.live[b] = true
	b.users++ // the reading itself
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
	for _, it := range b.items {
		c := newContent(bs.s, bs.job.find(it.FQN()), it.Box)
		var err error
		if wants, err = c.run(wants, buf[:c.size], 0, c.box.Volume()); err != nil {
			return err
		}
		buf = buf[c.size:]
	}
	return bs.s.read(ctx, wants)
}

// evict frees the buffer that nobody uses and that was not asked for for the
// longest time. It needs mu.
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

// free gives the buffer of a batch back. It needs mu.
func (bs *batches) free(b *batch) {
	bs.s.ahead.put(b.buf)
	b.buf = nil
	delete(bs.live, b)
}

// drop ends a use of b, after which so many items were taken for good.
func (bs *batches) drop(b *batch, items int) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b.users--
	b.left -= items
	if b.users == 0 && b.left <= 0 && b.buf != nil {
		bs.free(b)
	}
}

// close frees all buffers. Nothing is being read any more.
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

// ReadAt implements plan.Stream. Where there is no memory for the batch, or
// something in it cannot be read, which may be another item, this one is read by
// itself.
func (st *batchStream) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > st.size || int64(len(p)) > st.size-off {
		return st.fill(ctx, p, off) // which says what is wrong
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
