package collective

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// AllReduce replaces the elements of t by the reduction of those of all ranks,
// whose tensors have as many.
func (c *Comm) AllReduce(ctx context.Context, t *tensor.Tensor, op Op) error {
	return c.do(ctx, c.allReduce(t, op))
}

// AllReduceAsync starts an [Comm.AllReduce].
func (c *Comm) AllReduceAsync(ctx context.Context, t *tensor.Tensor, op Op) *Work {
	return c.start(ctx, c.allReduce(t, op))
}

func (c *Comm) allReduce(t *tensor.Tensor, op Op) *task {
	k := &task{call: call{kind: allReduce, op: op}}
	if k.err = checkTarget(t); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = t.DType(), t.NumElements()
	if k.err = op.check(t.DType()); k.err != nil {
		return k
	}
	k.call.algorithm = c.chooseReduce(allReduce, t.DType(), t.NumBytes())
	if c.size == 1 {
		return k
	}
	mem, store := writable(t, true)
	k.settle = store
	red := newReduction(op, t.DType(), c.size)
	switch k.call.algorithm {
	case Eager:
		all := newBlocks(c.size, mem)
		k.payload = all
		k.settle = func() error {
			c.reduceBlocks(&red, all, func(b []byte) []byte { return b }, mem)
			return settle(store)
		}
	case Tree:
		k.run = func(ctx context.Context, x *exchange) error { return x.treeReduce(ctx, mem, red) }
	case Ring:
		k.call.piece = c.o.PieceBytes
		k.run = func(ctx context.Context, x *exchange) error { return x.ringReduce(ctx, mem, red) }
	case Direct:
		k.call.piece, k.wide = c.o.PieceBytes, true
		k.run = func(ctx context.Context, x *exchange) error { return x.directReduce(ctx, mem, red) }
	}
	return k
}

// reduceBlocks reduces a part of each rank's block, in the order of the ranks,
// into dst.
func (c *Comm) reduceBlocks(red *reduction, all *blocks, part func([]byte) []byte, dst []byte) {
	of := func(rank int) []byte { return part(all.of((c.rank - rank + c.size) % c.size)) }
	sum, room := make([]byte, red.sumBytes(len(dst))), make([]byte, red.sumBytes(len(dst)))
	copy(sum, red.widen(room, of(0)))
	for r := 1; r < c.size; r++ {
		red.add(sum, sum, of(r), room)
	}
	red.finish(dst, sum)
}

// settle calls store, if there is anything to store.
func settle(store func() error) error {
	if store == nil {
		return nil
	}
	return store()
}

// ringReduce keeps partial results in mem itself if they are elements, else
// in memory of their own for one segment.
func (x *exchange) ringReduce(ctx context.Context, mem []byte, red reduction) error {
	seg := segments(mem, red.elem.Size(), x.size)
	g := &ring{
		exchange: x, reduce: x.size - 1, steps: 2 * (x.size - 1), piece: x.o.PieceBytes,
		red: red, own: seg, out: seg, partial: seg,
	}
	if red.widens() {
		g.keepPartial(len(seg(0)))
	}
	return g.run(ctx)
}

// keepPartial gives the ring memory for the partial results of one segment of up
// to n bytes.
func (g *ring) keepPartial(n int) {
	mem := make([]byte, g.red.sumBytes(n))
	g.shared = true
	g.partial = func(int) []byte { return mem }
}

// Broadcast replaces the elements of t on all ranks by those of rank root.
func (c *Comm) Broadcast(ctx context.Context, t *tensor.Tensor, root int) error {
	return c.do(ctx, c.broadcast(t, root))
}

// BroadcastAsync starts a [Comm.Broadcast].
func (c *Comm) BroadcastAsync(ctx context.Context, t *tensor.Tensor, root int) *Work {
	return c.start(ctx, c.broadcast(t, root))
}

func (c *Comm) broadcast(t *tensor.Tensor, root int) *task {
	k := &task{call: call{kind: broadcast, root: root}}
	if root < 0 || root >= c.size {
		k.err = fmt.Errorf("root %d of %d ranks: %w", root, c.size, group.ErrInvalid)
		return k
	}
	check := checkTarget
	if c.rank == root {
		check = checkSource
	}
	if k.err = check(t); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = t.DType(), t.NumElements()
	k.call.algorithm = c.choose(broadcast, t.NumBytes(), t.NumBytes())
	if c.size == 1 {
		return k
	}
	var mem []byte
	if c.rank == root {
		mem = readable(t)
	} else {
		mem, k.settle = writable(t, false)
	}
	switch k.call.algorithm {
	case Eager:
		got := &token{ranks: c.size, after: (c.rank - root + c.size) % c.size, mem: mem}
		if c.rank != root { // what comes before all have agreed is not t's yet
			got.mem = make([]byte, len(mem))
			store := k.settle
			k.settle = func() error {
				copy(mem, got.mem)
				return settle(store)
			}
		}
		k.payload = got
	case Tree:
		k.run = func(ctx context.Context, x *exchange) error { return x.treeDown(ctx, mem, root) }
	case Ring:
		k.call.piece = c.o.PieceBytes
		k.run = func(ctx context.Context, x *exchange) error { return x.chain(ctx, mem, root) }
	}
	return k
}

// chain hands root's mem from rank to rank, a piece after the other.
func (x *exchange) chain(ctx context.Context, mem []byte, root int) error {
	tag, size := tagOf(x.seq, dataLane), x.o.PieceBytes
	n := pieces(len(mem), size)
	ready := make(tally, n)
	first, last := x.rank == root, x.at(1) == root
	send := func(ctx context.Context) error {
		for p := range n {
			if err := ready.take(ctx); err != nil {
				return err
			}
			if err := x.m.Send(ctx, x.at(1), tag, cut(mem, p, size)); err != nil {
				return err
			}
		}
		return nil
	}
	recv := func(ctx context.Context) error {
		for p := range n {
			if !first {
				if err := x.m.RecvInto(ctx, x.at(-1), tag, cut(mem, p, size)); err != nil {
					return err
				}
			}
			ready.add()
		}
		return nil
	}
	if last {
		return recv(ctx)
	}
	return duplex(ctx, send, recv)
}

// AllGather hands every rank's src to all ranks: dst holds them one after the
// other, in the order of the ranks and each in row-major order. So dst has the
// shape of src with its first dimension multiplied by the size of the group, or
// any other shape of as many elements. All ranks' src have equally many.
func (c *Comm) AllGather(ctx context.Context, dst, src *tensor.Tensor) error {
	return c.do(ctx, c.allGather(dst, src))
}

// AllGatherAsync starts an [Comm.AllGather].
func (c *Comm) AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) *Work {
	return c.start(ctx, c.allGather(dst, src))
}

func (c *Comm) allGather(dst, src *tensor.Tensor) *task {
	k := &task{call: call{kind: allGather}}
	if k.err = c.checkParts(dst, src, dst, src); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = src.DType(), src.NumElements()
	k.call.algorithm = c.choose(allGather, src.NumBytes(), dst.NumBytes())
	from := readable(src)
	to, store := writable(dst, false)
	k.settle = store
	part := func(r int) []byte { return to[r*len(from) : (r+1)*len(from)] }
	if k.call.algorithm == Eager {
		all := newBlocks(c.size, from)
		k.payload = all
		k.settle = func() error {
			for r := range c.size {
				copy(part(r), all.of((c.rank-r+c.size)%c.size))
			}
			return settle(store)
		}
		return k
	}
	k.call.piece = c.o.PieceBytes
	k.run = func(ctx context.Context, x *exchange) error {
		copy(part(x.rank), from)
		g := &ring{exchange: x, steps: x.size - 1, piece: x.o.PieceBytes, own: part, out: part}
		return g.run(ctx)
	}
	return k
}

// ReduceScatter reduces the elements of all ranks' src and gives each rank its
// part: rank r's dst holds the r-th of as many equal parts of the result, in
// row-major order, as there are ranks. So dst has the shape of src with its
// first dimension divided by the size of the group, or any other shape of as
// many elements. src is not written to.
func (c *Comm) ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op Op) error {
	return c.do(ctx, c.reduceScatter(dst, src, op))
}

// ReduceScatterAsync starts a [Comm.ReduceScatter].
func (c *Comm) ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op Op) *Work {
	return c.start(ctx, c.reduceScatter(dst, src, op))
}

func (c *Comm) reduceScatter(dst, src *tensor.Tensor, op Op) *task {
	k := &task{call: call{kind: reduceScatter, op: op}}
	if k.err = c.checkParts(src, dst, dst, src); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = dst.DType(), dst.NumElements()
	if k.err = op.check(dst.DType()); k.err != nil {
		return k
	}
	k.call.algorithm = c.chooseReduce(reduceScatter, src.DType(), src.NumBytes())
	s := &scattering{from: readable(src), red: newReduction(op, dst.DType(), c.size)}
	s.to, k.settle = writable(dst, false)
	switch {
	case c.size == 1:
		k.settle = func() error { return tensor.Copy(dst, flat(s.from, dst)) }
	case k.call.algorithm == Eager:
		all, store := newBlocks(c.size, s.from), k.settle
		k.payload = all
		k.settle = func() error {
			c.reduceBlocks(&s.red, all, func(b []byte) []byte { return s.part(b, c.rank) }, s.to)
			return settle(store)
		}
	case k.call.algorithm == Direct:
		k.call.piece, k.wide, k.run = c.o.PieceBytes, true, s.direct
	default:
		k.call.piece, k.run = c.o.PieceBytes, s.ring
	}
	return k
}

// scattering is a reduce-scatter: the memory of all parts, that of this rank's
// own in the result, and how they are reduced.
type scattering struct {
	from, to []byte
	red      reduction
}

// part returns the part of rank r in the memory of all.
func (s *scattering) part(all []byte, r int) []byte { return all[r*len(s.to) : (r+1)*len(s.to)] }

func (s *scattering) own(r int) []byte { return s.part(s.from, r) }

func (s *scattering) result(int) []byte { return s.to }

func (s *scattering) direct(ctx context.Context, x *exchange) error {
	d := &direct{exchange: x, piece: x.o.PieceBytes, red: s.red, own: s.own, out: s.to}
	return d.run(ctx)
}

func (s *scattering) ring(ctx context.Context, x *exchange) error {
	g := &ring{
		exchange: x, shift: -1, reduce: x.size - 1, steps: x.size - 1, piece: x.o.PieceBytes,
		red: s.red, own: s.own, out: s.result, shared: true, partial: s.result,
	}
	if s.red.widens() {
		g.keepPartial(len(s.to))
	}
	return g.run(ctx)
}

// checkParts returns an error unless whole has as many elements as there are
// ranks times those of part, of one type, and dst can be written to.
func (c *Comm) checkParts(whole, part, dst, src *tensor.Tensor) error {
	if err := checkSource(src); err != nil {
		return err
	}
	if err := checkTarget(dst); err != nil {
		return err
	}
	if dst.DType() != src.DType() {
		return fmt.Errorf("%v from %v: %w", dst, src, tensor.ErrDType)
	}
	n, rest := whole.NumElements()/int64(c.size), whole.NumElements()%int64(c.size)
	if rest != 0 || n != part.NumElements() {
		return fmt.Errorf("%v is not %d times %v: %w", whole, c.size, part, tensor.ErrShape)
	}
	return nil
}

// flat returns a tensor of t's type and shape over mem.
func flat(mem []byte, t *tensor.Tensor) *tensor.Tensor {
	f, err := tensor.FromBytes(t.DType(), t.Shape(), mem)
	if err != nil {
		panic(err) // the memory was made for as many elements
	}
	return f
}

// Splits says how [Comm.AllToAll] cuts the first dimension of its tensors: In[r]
// rows of src go to rank r, and Out[r] rows of dst come from it. What a rank
// sends another must be what that one expects. Nil means equal parts.
type Splits struct{ In, Out []int64 }

// AllToAll sends every rank its rows of src and receives the rows of dst from
// all ranks, in the order of the ranks. The other dimensions of src and dst hold
// equally many elements, on all ranks.
func (c *Comm) AllToAll(ctx context.Context, dst, src *tensor.Tensor, s Splits) error {
	return c.do(ctx, c.allToAll(dst, src, s))
}

// AllToAllAsync starts an [Comm.AllToAll].
func (c *Comm) AllToAllAsync(ctx context.Context, dst, src *tensor.Tensor, s Splits) *Work {
	return c.start(ctx, c.allToAll(dst, src, s))
}

// uneven is the detail of a rank whose parts are not all equal.
const uneven = 1<<64 - 1

func (c *Comm) allToAll(dst, src *tensor.Tensor, s Splits) *task {
	k := &task{call: call{kind: allToAll, algorithm: Ring}, wide: true}
	row, err := checkRows(dst, src)
	if err != nil {
		k.err = err
		return k
	}
	k.call.dtype, k.call.count = src.DType(), row
	in, err := c.split("source", src.Shape()[0], s.In)
	if err == nil {
		s.Out, err = c.split("destination", dst.Shape()[0], s.Out)
	}
	if err != nil {
		k.err = err
		return k
	}
	k.detail = uneven
	if n := in[0]; !slices.ContainsFunc(slices.Concat(in, s.Out), func(v int64) bool { return v != n }) {
		k.detail = uint64(n)
	}
	to, store := writable(dst, false)
	a := &shuffle{in: in, out: s.Out}
	a.from = parts(readable(src), in, row*int64(src.DType().Size()))
	a.to = parts(to, s.Out, row*int64(src.DType().Size()))
	k.settle = store
	k.run = func(ctx context.Context, x *exchange) error {
		if x.verdict.differs || x.verdict.detail == uneven {
			if err := a.fit(ctx, x, k.call); err != nil {
				return err
			}
		}
		return a.run(ctx, x)
	}
	return k
}

// checkRows returns how many elements a row of both tensors has.
func checkRows(dst, src *tensor.Tensor) (int64, error) {
	if err := checkSource(src); err != nil {
		return 0, err
	}
	if err := checkTarget(dst); err != nil {
		return 0, err
	}
	if dst.DType() != src.DType() {
		return 0, fmt.Errorf("%v from %v: %w", dst, src, tensor.ErrDType)
	}
	d, err := rowOf(dst)
	if err != nil {
		return 0, err
	}
	s, err := rowOf(src)
	if err == nil && d != s {
		err = fmt.Errorf("rows of %v from those of %v: %w", dst, src, tensor.ErrShape)
	}
	return s, err
}

func rowOf(t *tensor.Tensor) (int64, error) {
	if t.Dims() == 0 {
		return 0, fmt.Errorf("rows of %v: %w", t, tensor.ErrShape)
	}
	return tensor.NumElements(t.Shape()[1:])
}

// split returns how many rows belong to each rank.
func (c *Comm) split(what string, rows int64, given []int64) ([]int64, error) {
	n := int64(c.size)
	if given == nil {
		if rows%n != 0 {
			return nil, fmt.Errorf("%s of %d rows for %d ranks: %w", what, rows, n, tensor.ErrShape)
		}
		return slices.Repeat([]int64{rows / n}, c.size), nil
	}
	left := rows
	for _, v := range given {
		if v < 0 || v > left {
			return nil, fmt.Errorf("%s of %d rows split into %v: %w", what, rows, given, tensor.ErrShape)
		}
		left -= v
	}
	if len(given) != c.size || left != 0 {
		return nil, fmt.Errorf("%s of %d rows split into %v for %d ranks: %w", what, rows, given, n, tensor.ErrShape)
	}
	return slices.Clone(given), nil
}

// parts cuts mem into rows of size bytes each.
func parts(mem []byte, rows []int64, size int64) [][]byte {
	out := make([][]byte, len(rows))
	for r, n := range rows {
		out[r], mem = mem[:n*size], mem[n*size:]
	}
	return out
}

// shuffle is an all-to-all.
type shuffle struct {
	in, out  []int64  // rows to and from each rank
	from, to [][]byte // their memory
}

// fit lets each rank compare what it expects with what the others are going to
// send, so that all ranks fail if something does not fit.
func (a *shuffle) fit(ctx context.Context, x *exchange, c call) error {
	tag := tagOf(x.seq, rowsLane)
	k := &task{call: c, err: a.compare(x.rank, a.in[x.rank])}
	for d := 1; d < x.size; d++ {
		b := binary.LittleEndian.AppendUint64(nil, uint64(a.in[x.at(d)]))
		if err := x.m.Send(ctx, x.at(d), tag, b); err != nil {
			return err
		}
	}
	for d := 1; d < x.size; d++ {
		var b [8]byte
		if err := x.m.RecvInto(ctx, x.at(-d), tag, b[:]); err != nil {
			return err
		}
		if err := a.compare(x.at(-d), int64(binary.LittleEndian.Uint64(b[:]))); err != nil && k.err == nil {
			k.err = err
		}
	}
	_, err := agree(ctx, x.Comm, tagOf(x.seq, fitLane), k)
	return err
}

func (a *shuffle) compare(from int, rows int64) error {
	if rows == a.out[from] {
		return nil
	}
	return fmt.Errorf("rank %d sends %d rows where %d are expected: %w", from, rows, a.out[from], group.ErrDisagree)
}

// maxMessage is the most bytes of a part that go in one message.
const maxMessage = 4 << 20

// run exchanges the parts: at step d every rank sends to the one that is d ranks
// further on, so that each has one to receive from.
func (a *shuffle) run(ctx context.Context, x *exchange) error {
	copy(a.to[x.rank], a.from[x.rank])
	tag := tagOf(x.seq, dataLane)
	each := func(rank func(d int) int, parts [][]byte, move func(rank int, b []byte) error) error {
		for d := 1; d < x.size; d++ {
			r := rank(d)
			for p := range pieces(len(parts[r]), maxMessage) {
				if err := move(r, cut(parts[r], p, maxMessage)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	send := func(ctx context.Context) error {
		return each(x.at, a.from, func(r int, b []byte) error { return x.m.Send(ctx, r, tag, b) })
	}
	recv := func(ctx context.Context) error {
		before := func(d int) int { return x.at(-d) }
		return each(before, a.to, func(r int, b []byte) error { return x.m.RecvInto(ctx, r, tag, b) })
	}
	return duplex(ctx, send, recv)
}

// choose returns the algorithm for a call whose elements take that many bytes on
// one rank and on all together if they travel with the agreement.
func (c *Comm) choose(k kind, bytes, all int64) Algorithm {
	eager := int64(c.o.EagerBytes)
	if c.o.Algorithm == Eager {
		eager = maxEager
	}
	tree := k == allReduce || k == broadcast
	switch {
	case c.size == 1 || c.o.Algorithm <= Eager && all <= eager:
		return Eager
	case c.o.Algorithm == Tree && tree, c.o.Algorithm == Auto && tree && bytes <= min(maxTree, int64(c.o.TreeBytes)*int64(c.size)):
		return Tree
	}
	return Ring
}

// chooseReduce is choose for elements of type d that are reduced.
func (c *Comm) chooseReduce(k kind, d tensor.DType, bytes int64) Algorithm {
	a := c.choose(k, bytes, bytes*int64(c.size))
	wide := sumType(d) != d && c.size < manyRanks
	if a == Ring && (c.o.Algorithm == Direct || c.o.Algorithm == Auto && wide) {
		return Direct
	}
	return a
}

// Send sends the elements of t to rank to, which receives them by [Comm.Recv]
// with the same tag, from 0 to [MaxTag]. Tensors with one tag arrive in the order
// of the calls; other tags are apart, and so are collective calls. It returns
// when t may be written to again, which for more than a few KiB may be only once
// the other rank receives.
//
// If ctx ends before, nothing arrives, and the receiver that has begun gets
// [ErrRecalled]. In the unlikely case that it cannot be told so, further calls with
// this tag fail with [ErrBroken].
func (c *Comm) Send(ctx context.Context, t *tensor.Tensor, to, tag int) error {
	return outbound(c, t, to, tag).post(ctx).Wait(context.Background())
}

// ISend starts a [Comm.Send]. There is no bound on how many are in flight.
func (c *Comm) ISend(ctx context.Context, t *tensor.Tensor, to, tag int) *Work {
	return outbound(c, t, to, tag).post(ctx)
}

// Recv replaces the elements of t by those of the next tensor that rank from
// sends with this tag. One of another dtype or number of elements is an error
// that wraps [group.ErrDisagree], and is gone; the shape may differ.
//
// A tensor whose sender gives up half way is an error that wraps [ErrRecalled],
// and the next one is fine. If ctx ends once a tensor of more than some KiB has
// begun to arrive, or messages arrive that do not belong to it, what is left is in the
// way: further calls for this rank and tag fail with [ErrBroken].
func (c *Comm) Recv(ctx context.Context, t *tensor.Tensor, from, tag int) error {
	return inbound(c, t, from, tag).post(ctx).Wait(context.Background())
}

// IRecv starts a [Comm.Recv]. There is no bound on how many are in flight.
func (c *Comm) IRecv(ctx context.Context, t *tensor.Tensor, from, tag int) *Work {
	return inbound(c, t, from, tag).post(ctx)
}
