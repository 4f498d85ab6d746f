package collective

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// AllReduce replaces the elements of t by the reduction of those of all ranks. The
// tensors of all ranks have equally many elements.
func (c *Comm) AllReduce(ctx context.Context, t *tensor.Tensor, op Op) error {
	return c.do(ctx, c.allReduce(t, op))
}

// AllReduceAsync starts an [Comm.AllReduce].
func (c *Comm) AllReduceAsync(ctx context.Context, t *tensor.Tensor, op Op) *Work {
	return c.start(ctx, c.allReduce(t, op))
}

func (c *Comm) allReduce(t *tensor.Tensor, op Op) *task {
	k := &task{call: call{kind: OpAllReduce, op: op}}
	if k.err = checkTarget(t); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = t.DType(), t.NumElements()
	if k.err = op.check(t.DType()); k.err != nil || c.size == 1 {
		return k
	}
	mem, store := writable(t, true)
	red := newReduction(op, t.DType(), c.size)
	k.wide, k.settle = red.widens() && !c.small(len(mem)), store
	k.run = func(ctx context.Context, x *exchange) error { return x.reduceAll(ctx, mem, red) }
	return k
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
	k := &task{call: call{kind: group.OpBroadcast, root: root}}
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
	if c.size == 1 {
		return k
	}
	var mem []byte
	if c.rank == root {
		mem, k.settle = readable(t), func() error { return nil }
	} else {
		mem, k.settle = writable(t, false)
	}
	k.run = func(ctx context.Context, x *exchange) error {
		if c.small(len(mem)) {
			return x.treeDown(ctx, mem, root)
		}
		return x.chain(ctx, mem, root)
	}
	return k
}

// AllGather hands every rank's src to all ranks: dst holds them one after the
// other, in the order of the ranks and each in row-major order. So dst has the
// shape of src with its first dimension multiplied by the size of the group, or
// another shape with this number of elements. The src of all ranks have equally many.
func (c *Comm) AllGather(ctx context.Context, dst, src *tensor.Tensor) error {
	return c.do(ctx, c.allGather(dst, src))
}

// AllGatherAsync starts an [Comm.AllGather].
func (c *Comm) AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) *Work {
	return c.start(ctx, c.allGather(dst, src))
}

func (c *Comm) allGather(dst, src *tensor.Tensor) *task {
	k := &task{call: call{kind: group.OpAllGather}}
	if k.err = c.checkParts(dst, src, dst, src); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = src.DType(), src.NumElements()
	from := readable(src)
	to, store := writable(dst, false)
	part := func(r int) []byte { return to[r*len(from) : (r+1)*len(from)] }
	k.settle = store
	k.run = func(ctx context.Context, x *exchange) error {
		copy(part(x.rank), from)
		g := &ring{exchange: x, lane: dataLane, steps: x.size - 1, own: part, result: part}
		return g.run(ctx)
	}
	return k
}

// ReduceScatter reduces the elements of all ranks' src, cuts the result into equal
// parts in row-major order, and stores part r in the dst of rank r. So dst has the
// shape of src with its first dimension divided by the size of the group, or another
// shape with this number of elements. src is not written to.
func (c *Comm) ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op Op) error {
	return c.do(ctx, c.reduceScatter(dst, src, op))
}

// ReduceScatterAsync starts a [Comm.ReduceScatter].
func (c *Comm) ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op Op) *Work {
	return c.start(ctx, c.reduceScatter(dst, src, op))
}

func (c *Comm) reduceScatter(dst, src *tensor.Tensor, op Op) *task {
	k := &task{call: call{kind: OpReduceScatter, op: op}}
	if k.err = c.checkParts(src, dst, dst, src); k.err != nil {
		return k
	}
	k.call.dtype, k.call.count = dst.DType(), dst.NumElements()
	if k.err = op.check(dst.DType()); k.err != nil {
		return k
	}
	from := readable(src)
	to, store := writable(dst, false)
	own := func(r int) []byte { return from[r*len(to) : (r+1)*len(to)] }
	red := newReduction(op, dst.DType(), c.size)
	k.wide, k.settle = red.widens(), store
	k.run = func(ctx context.Context, x *exchange) error {
		switch {
		case x.size == 1:
			copy(to, from)
			return nil
		case red.widens():
			return x.reduceDirect(ctx, own, to, red)
		}
		g := &ring{
			exchange: x, lane: dataLane, shift: -1, reduce: x.size - 1, steps: x.size - 1,
			red: red, own: own, result: func(int) []byte { return to }, shared: true,
		}
		return g.run(ctx)
	}
	return k
}

// checkParts returns an error unless whole has the elements of one part for each
// rank, of one type, and dst can be written to.
func (c *Comm) checkParts(whole, part, dst, src *tensor.Tensor) error {
	if err := checkBoth(dst, src); err != nil {
		return err
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
		panic(err) // mem has the size of t
	}
	return f
}

// Splits says how [Comm.AllToAll] cuts the first dimension of its tensors: In[r]
// rows of src go to rank r, and Out[r] rows of dst come from it. The numbers of the
// sender and of the receiver must be equal. Nil means equal parts.
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
	k := &task{call: call{kind: OpAllToAll}, wide: true}
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
	if err := checkBoth(dst, src); err != nil {
		return 0, err
	}
	if dst.Dims() == 0 || src.Dims() == 0 {
		return 0, fmt.Errorf("rows of %v from those of %v: %w", dst, src, tensor.ErrShape)
	}
	d, err := tensor.NumElements(dst.Shape()[1:])
	if err != nil {
		return 0, err
	}
	s, err := tensor.NumElements(src.Shape()[1:])
	if err == nil && d != s {
		err = fmt.Errorf("rows of %v from those of %v: %w", dst, src, tensor.ErrShape)
	}
	return s, err
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
	return fmt.Errorf("rank %d sends %d rows, %d are expected: %w", from, rows, a.out[from], group.ErrDisagree)
}

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
