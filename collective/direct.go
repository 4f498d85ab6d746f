package collective

import (
	"context"
)

// direct is a reduce-scatter in which every rank sends its elements of a segment
// to the rank that reduces them, as they are.
//
// A ring has to carry partial results, which for floats of 16 and 8 bits are
// twice and four times as large as elements; here elements cross alone. In
// return every rank is connected with all others.
type direct struct {
	*exchange
	piece int // bytes of elements
	red   reduction
	own   func(seg int) []byte // this rank's elements of a segment
	out   []byte               // where this rank's segment belongs
}

// run returns once this rank has its segment and the others have its elements.
//
// Pieces go in the order of their number, of the sender and of the receiver, on
// both sides. So there is always one for which both are ready, even where
// sending waits for the receiver.
func (g *direct) run(ctx context.Context) error {
	return duplex(ctx, g.send, g.recv)
}

func (g *direct) send(ctx context.Context) error {
	tag := tagOf(g.seq, dataLane)
	for p := range pieces(len(g.own(0)), g.piece) { // no segment is longer
		for r := range g.size {
			b := cut(g.own(r), p, g.piece)
			if r == g.rank || len(b) == 0 {
				continue
			}
			if err := g.m.Send(ctx, r, tag, b); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *direct) recv(ctx context.Context) error {
	mine := g.own(g.rank)
	sums := g.red.sumBytes(g.piece)
	buf, free := scratch(2*sums + g.piece)
	defer free()
	for p := range pieces(len(mine), g.piece) {
		own := cut(mine, p, g.piece)
		n := g.red.sumBytes(len(own))
		sum, room, in := buf[:n], buf[sums:sums+n], buf[2*sums:2*sums+len(own)]
		if err := g.reduce(ctx, sum, room, in, own); err != nil {
			return err
		}
		g.red.finish(cut(g.out, p, g.piece), sum)
	}
	return nil
}

// reduce sets sum to the reduction of all ranks' elements of a piece, in the
// order of the ranks.
func (g *direct) reduce(ctx context.Context, sum, room, in, own []byte) error {
	tag := tagOf(g.seq, dataLane)
	for r := range g.size {
		b := own
		if r != g.rank {
			b = in
			if err := g.m.RecvInto(ctx, r, tag, in); err != nil {
				return err
			}
		}
		if r == 0 {
			copy(sum, g.red.widen(sum, b))
			continue
		}
		g.red.add(sum, sum, b, room)
	}
	return nil
}

// directReduce is an all-reduce: after a direct reduce-scatter a ring passes the
// segments on.
func (x *exchange) directReduce(ctx context.Context, mem []byte, red reduction) error {
	seg := segments(mem, red.elem.Size(), x.size)
	d := &direct{exchange: x, piece: x.o.PieceBytes, red: red, own: seg, out: seg(x.rank)}
	if err := d.run(ctx); err != nil {
		return err
	}
	g := &ring{exchange: x, steps: x.size - 1, piece: x.o.PieceBytes, own: seg, out: seg, lane: passLane}
	return g.run(ctx)
}
