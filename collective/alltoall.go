package collective

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

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

// parts cuts mem into so many rows of size bytes each.
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
// send, so that all ranks fail where something does not fit.
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
	_, err := x.agree(ctx, tagOf(x.seq, fitLane), k)
	return err
}

func (a *shuffle) compare(from int, rows int64) error {
	if rows == a.out[from] {
		return nil
	}
	return fmt.Errorf("rank %d sends %d rows where %d are expected: %w", from, rows, a.out[from], group.ErrDisagree)
}

// letter is how many bytes of a part go in one message.
const letter = 4 << 20

// run exchanges the parts: at step d every rank sends to the one that is d ranks
// further on, so that each has one to receive from.
func (a *shuffle) run(ctx context.Context, x *exchange) error {
	copy(a.to[x.rank], a.from[x.rank])
	tag := tagOf(x.seq, dataLane)
	each := func(rank func(d int) int, parts [][]byte, move func(rank int, b []byte) error) error {
		for d := 1; d < x.size; d++ {
			r := rank(d)
			for p := range pieces(len(parts[r]), letter) {
				if err := move(r, cut(parts[r], p, letter)); err != nil {
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
