package convert

import (
	"context"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// content is a box of a tensor of the source, in the target's dtype.
type content struct {
	s      *source
	entry  *entry
	box    tensor.Box
	chunks []int32
	size   int64 // in bytes
}

func newContent(s *source, e *entry, box tensor.Box) content {
	return content{
		s: s, entry: e, box: box, chunks: e.chunks.find(e.src.Tensor.Chunks, box),
		size: box.Volume() * int64(e.info.DType.Size()),
	}
}

func (c *content) DType() tensor.DType { return c.entry.info.DType }
func (c *content) Shape() []int64      { return c.box.Sizes }

// fill reads the bytes from off on into p. Its errors leave it to the writer to
// name the tensor.
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
	if err := c.s.read(ctx, w); err != nil {
		return withoutName(err, c.entry.info.FQN)
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

// wants appends what fills p with the bytes from off on. Elements that an end of
// p cuts through are read into edges, to be copied afterwards.
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

// run appends what fills p with the elements [lo, hi) of the flattened box.
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
		to = append(to, want{entry: c.entry.src, chunks: c.chunks, box: moved(b, c.box.Offsets), dst: dst})
	}
	return to, nil
}

// moved returns b as seen from where by is an offset.
func moved(b tensor.Box, by []int64) tensor.Box {
	out := tensor.Box{Offsets: make([]int64, len(b.Offsets)), Sizes: b.Sizes}
	for d := range out.Offsets {
		out.Offsets[d] = b.Offsets[d] + by[d]
	}
	return out
}

// stream is a large content. Its readers ask for pieces of one length, one after
// the other, so what comes next is known. From a source that is slow, as those in
// other places are, it is read ahead; from a fast one it is better read straight
// to where it goes: the copy would cost more than the waiting.
type stream struct {
	content
	queue []*unit // in the order of their offsets, the next one first
}

var _ plan.Stream = (*stream)(nil)

const (
	// maxAhead is how many pieces of one stream are read ahead.
	maxAhead = 3
	// slowRate is up to how many bytes a second, by one reader, a source is slow.
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
	if st.s.slow.Load() {
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

// straight reads without a detour, and takes the time.
func (st *stream) straight(ctx context.Context, p []byte, off int64) error {
	start := time.Now()
	err := st.fill(ctx, p, off)
	if len(p) >= minUnit {
		st.s.slow.Store(time.Since(start) > time.Duration(len(p))*time.Second/slowRate)
	}
	return err
}

// next takes the piece that was read ahead for n bytes at off out of the queue,
// or returns nil. What was foreseen wrongly is dropped.
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

// readAhead begins to read the pieces of that length from off on, as far as
// there are buffers.
func (st *stream) readAhead(off, n int64) {
	if n > st.s.ahead.size() || n < minUnit {
		return
	}
	if k := len(st.queue); k > 0 {
		off = st.queue[k-1].off + int64(len(st.queue[k-1].p))
	}
	for len(st.queue) < maxAhead && off < st.size {
		buf := st.s.ahead.try()
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

// release gives the buffer of a piece back, once nobody writes to it any more.
func (st *stream) release(u *unit) {
	select {
	case <-u.done:
		st.s.ahead.put(u.p)
	default:
		st.s.wg.Go(func() {
			<-u.done
			st.s.ahead.put(u.p)
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
