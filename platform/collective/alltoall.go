package collective

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

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

// uneven is the detail of a rank with parts of different sizes.
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

	a := &shuffle{in: in, out: s.Out, rows: true, from: rowParts(src, in), to: rowParts(dst, s.Out)}
	k.settle = func() error { return nil }
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

// AllToAllParts sends the tensors src[r] to each rank r, and receives the tensors dst[r]
// from it. Both ranks list the same number of tensors, with the same dtypes and numbers of
// elements. The tensors may be views of any strides. They are sent together, in
// messages of some MiB. One that is contiguous is not copied, and neither are long runs of
// src if the group is a [group.PartSender].
func (c *Comm) AllToAllParts(ctx context.Context, dst, src [][]*tensor.Tensor) error {
	return c.do(ctx, c.allToAllParts(dst, src))
}

func (c *Comm) allToAllParts(dst, src [][]*tensor.Tensor) *task {
	k := &task{call: call{kind: OpAllToAllParts}, wide: true, settle: func() error { return nil }}
	if len(dst) != c.size || len(src) != c.size {
		k.err = fmt.Errorf("parts of %d and %d ranks, of %d: %w", len(dst), len(src), c.size, tensor.ErrShape)
		return k
	}

	a := &shuffle{from: src, to: dst}
	for r := range src {
		for _, t := range src[r] {
			k.err = cmp.Or(k.err, checkSource(t))
		}
		for _, t := range dst[r] {
			k.err = cmp.Or(k.err, checkTarget(t))
		}
	}

	if k.err != nil {
		return k
	}

	for r := range src {
		a.in, a.out = append(a.in, identify(src[r])), append(a.out, identify(dst[r]))
	}

	k.run = func(ctx context.Context, x *exchange) error {
		if err := a.fit(ctx, x, k.call); err != nil {
			return err
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
		return 0, fmt.Errorf("rows of %v from rows of %v: %w", dst, src, tensor.ErrShape)
	}

	d, err := tensor.NumElements(dst.Shape()[1:])
	if err != nil {
		return 0, err
	}

	s, err := tensor.NumElements(src.Shape()[1:])
	if err == nil && d != s {
		err = fmt.Errorf("rows of %v from rows of %v: %w", dst, src, tensor.ErrShape)
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

// rowParts returns the rows of t that belong to each rank.
func rowParts(t *tensor.Tensor, rows []int64) [][]*tensor.Tensor {
	out := make([][]*tensor.Tensor, len(rows))
	var at int64
	for r, n := range rows {
		out[r] = []*tensor.Tensor{must(t.Slice(0, at, at+n, 1))}
		at += n
	}
	return out
}

// shuffle is an all-to-all.
type shuffle struct {
	from, to [][]*tensor.Tensor // to and from each rank
	// in and out are the rows that go to and come from each rank, or numbers that
	// identify the tensors. They must be equal at both ends.
	in, out []int64
	rows    bool
}

// identify returns a number that tensors of other dtypes or lengths do not have.
func identify(ts []*tensor.Tensor) int64 {
	h := fnv.New64a()
	for _, t := range ts {
		h.Write(header{t.DType(), t.NumElements()}.encode())
	}
	return int64(h.Sum64() >> 1)
}

// fit lets each rank compare the sizes that it expects with the sizes that the others are
// going to send, so that all ranks fail if two sizes differ.
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

func (a *shuffle) compare(from int, sent int64) error {
	if sent == a.out[from] {
		return nil
	}
	if !a.rows {
		return fmt.Errorf("rank %d sends other tensors than are expected: %w", from, group.ErrDisagree)
	}
	return fmt.Errorf("rank %d sends %d rows, %d are expected: %w", from, sent, a.out[from], group.ErrDisagree)
}

// run exchanges the parts: at step d every rank sends to the one that is d ranks
// further on, so that each has one to receive from.
func (a *shuffle) run(ctx context.Context, x *exchange) error {
	for i, t := range a.to[x.rank] {
		if err := copyFlat(t, a.from[x.rank][i]); err != nil {
			return err
		}
	}

	tag := tagOf(x.seq, dataLane)
	each := func(rank func(d int) int, parts [][]*tensor.Tensor, move func(rank int, b batch, spare *room) error) error {
		var spare room
		defer spare.free()

		for d := 1; d < x.size; d++ {
			for b := range batches(parts[rank(d)], int64(x.o.piece)) {
				if err := move(rank(d), b, &spare); err != nil {
					return err
				}
			}
		}

		return nil
	}

	parts, vectored := x.m.(group.PartSender)
	send := func(ctx context.Context) error {
		return each(x.at, a.from, func(rank int, b batch, spare *room) error {
			if runs, ok := b.runs(spare); ok && vectored {
				return parts.SendParts(ctx, rank, tag, runs)
			}
			mem, err := b.pack(spare)
			if err != nil {
				return err
			}
			return x.m.Send(ctx, rank, tag, mem)
		})
	}

	recv := func(ctx context.Context) error {
		before := func(d int) int { return x.at(-d) }
		return each(before, a.to, func(rank int, b batch, spare *room) error {
			mem, own := b.memory(spare)
			if err := x.m.RecvInto(ctx, rank, tag, mem); err != nil {
				return err
			}
			return b.unpack(mem, own)
		})
	}
	return duplex(ctx, send, recv)
}

// copyFlat copies the elements of src to dst, which has as many, in row-major order.
func copyFlat(dst, src *tensor.Tensor) error {
	if !slices.Equal(dst.Shape(), src.Shape()) {
		src = flat(readable(src), dst)
	}
	return tensor.Copy(dst, src)
}

// batch is the elements of one message: views that follow one another.
type batch []*tensor.Tensor

// batches cuts tensors into batches of at most limit bytes. Small tensors share a
// batch. The sizes of the batches depend only on the dtypes and numbers of elements,
// so that they are the same at both ends.
func batches(ts []*tensor.Tensor, limit int64) iter.Seq[batch] {
	return func(yield func(batch) bool) {
		var b batch
		left, more := limit, true
		end := func() bool {
			if len(b) > 0 {
				more = yield(b)
			}
			b, left = nil, limit
			return more
		}
		for _, t := range ts {
			// A batch that is one view of contiguous memory is not copied.
			alone := t.NumBytes() >= limit/8
			if mem, ok := t.Bytes(); ok {
				t = must(tensor.FromBytes(t.DType(), []int64{t.NumElements()}, mem))
			}

			size := int64(t.DType().Size())
			for at, n := int64(0), t.NumElements(); at < n; {
				if (left < size || alone) && !end() {
					return
				}
				next := min(n, at+left/size)
				for _, box := range must(tensor.FlatBoxes(t.Shape(), at, next)) {
					b = append(b, must(t.Narrow(box)))
				}
				left -= (next - at) * size
				at = next
			}

			if alone && !end() {
				return
			}
		}

		end()
	}
}

// must returns v. There is no error for a part of a tensor that is inside it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// room is spare memory for batches without contiguous memory.
type room struct {
	mem     []byte
	release func()
	runs    [][]byte
}

// get returns n bytes. They are valid until the next call.
func (r *room) get(n int64) []byte {
	if int64(cap(r.mem)) < n {
		r.free()
		r.mem, r.release = scratch(int(n))
	}
	return r.mem[:n]
}

func (r *room) free() {
	if r.release != nil {
		r.release()
	}
}

// memory returns the memory of the batch if it is contiguous, or else as much spare
// memory.
func (b batch) memory(spare *room) (mem []byte, own bool) {
	if len(b) == 1 {
		if mem, ok := b[0].Bytes(); ok {
			return mem, true
		}
	}

	var n int64
	for _, t := range b {
		n += t.NumBytes()
	}

	return spare.get(n), false
}

// shortestRun is the least number of contiguous bytes that are sent from the memory of a
// tensor. Shorter ones are copied: a system call for many pieces of memory costs as much.
const shortestRun = 1 << 10

// runs returns the memory of the elements in order, unless it has short pieces. It is valid
// until the next call with the same room.
func (b batch) runs(spare *room) ([][]byte, bool) {
	spare.runs = spare.runs[:0]
	for _, t := range b {
		var ok bool
		if spare.runs, ok = t.AppendRuns(spare.runs, min(shortestRun, t.NumBytes())); !ok {
			return nil, false
		}
	}
	return spare.runs, true
}

// pack returns the elements: in their own memory if that is contiguous, or in spare
// memory.
func (b batch) pack(spare *room) ([]byte, error) {
	mem, own := b.memory(spare)
	if own {
		return mem, nil
	}
	return mem, b.each(mem, func(view, packed *tensor.Tensor) error { return tensor.Copy(packed, view) })
}

// unpack stores the elements that are in mem, unless it is their own memory.
func (b batch) unpack(mem []byte, own bool) error {
	if own {
		return nil
	}
	return b.each(mem, tensor.Copy)
}

// each calls fn with each view and its part of mem.
func (b batch) each(mem []byte, fn func(view, packed *tensor.Tensor) error) error {
	for _, t := range b {
		n := t.NumBytes()
		if err := fn(t, flat(mem[:n], t)); err != nil {
			return err
		}
		mem = mem[n:]
	}
	return nil
}
