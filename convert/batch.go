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
	items []batchItem
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

// batchItem is an item and its place in the batch's bytes.
type batchItem struct {
	content
	off int64
}

// batches are those of one run.
type batches struct {
	s     *source
	mu    sync.Mutex
	clock int64            // guarded by mu
	live  map[*batch]bool  // those that have a buffer; guarded by mu
	of    map[itemKey]spot // not changed once made
}

// itemKey identifies an item of a run.
type itemKey struct {
	fqn string
	box string
}

// spot is the place of an item in a batch.
type spot struct {
	b *batch
	i int
}

// newBatches returns the batches of the ranks' plans.
func newBatches(s *source, j *Job, plans []*plan.SavePlan) *batches {
	bs := &batches{s: s, live: map[*batch]bool{}, of: map[itemKey]spot{}}
	for _, p := range plans {
		open := map[int]*batch{} // by the size of elements, since writers order files by it
		for i := range p.Items {
			it := &p.Items[i]
			if n := it.NumBytes(); it.Kind != plan.KindBytes && n > 0 && n <= s.ahead.size()/4 {
				bs.add(open, newContent(s, j.byName[it.FQN()], it.Box), keyOf(it))
			}
		}
	}
	return bs
}

// add adds a small item to the open batch of its kind, or to a new one.
func (bs *batches) add(open map[int]*batch, c content, key itemKey) {
	es := c.DType().Size()
	b := open[es]
	if b == nil || b.total+c.size > bs.s.ahead.size() || len(b.items) >= maxBatch {
		full := b
		b = &batch{}
		open[es] = b
		if full != nil {
			full.next = b
		}
	}
	bs.of[key] = spot{b, len(b.items)}
	b.items = append(b.items, batchItem{c, b.total})
	b.total += c.size
	b.left++
}

func keyOf(it *plan.WriteItem) itemKey { return itemKey{it.FQN(), boxKey(it.Box)} }

// open returns the content of an item of a tensor.
func (bs *batches) open(e *entry, it *plan.WriteItem) plan.Stream {
	at, small := bs.of[keyOf(it)]
	if !small {
		return &stream{content: newContent(bs.s, e, it.Box)}
	}
	item := &at.b.items[at.i]
	return &batchStream{content: item.content, bs: bs, b: at.b, off: item.off}
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
		func(ctx context.Context) error { return b.read(ctx, bs.s, buf) },
		func(err error) {
			b.err = err
			close(b.loaded)
			bs.drop(b, 0)
		})
	return true
}

// read fills buf with the items' bytes.
func (b *batch) read(ctx context.Context, s *source, buf []byte) error {
	wants := make([]want, 0, len(b.items))
	for i := range b.items {
		it := &b.items[i]
		var err error
		if wants, err = it.run(wants, buf[it.off:it.off+it.size], 0, it.box.Volume()); err != nil {
			return err
		}
	}
	return s.read(ctx, wants)
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
