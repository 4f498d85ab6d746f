package collective

import (
	"context"
)

// ring is a reduce-scatter, an all-gather or both, one after the other, in which
// every rank sends pieces to the next.
//
// The elements are cut into a segment for each rank, and these into pieces. At
// step t rank r sends segment r+shift-t and receives the one before it. In the
// first steps, those that reduce, what comes is a partial result, to which the
// rank adds its own elements; after the last of them the segment is complete,
// and in the other steps it is passed on as it is.
//
// Pieces do not wait for the end of a step: a rank sends a piece on a few pieces
// after it has come, while it is in the cache.
type ring struct {
	*exchange
	lane   lane // where pieces go; zero: dataLane
	tag    int
	shift  int
	reduce int // steps that reduce
	steps  int // all of them
	piece  int // bytes of elements

	red reduction // where steps reduce
	// own returns this rank's elements of a segment.
	own func(seg int) []byte
	// out returns where the elements of a complete segment belong.
	out func(seg int) []byte
	// partial returns where the partial results of a segment are kept until
	// they are sent on.
	partial func(seg int) []byte
	// shared says that partial returns the same memory for all segments.
	shared bool

	order []unit
	ready tally // units that were received
	sent  tally // units that were sent
}

// unit is a piece that is sent, and one that is received, at a step. What is sent
// after the first step is what was received at the step before, as unit number
// after.
type unit struct{ step, piece, after int }

// lead is by how many pieces a step is ahead of the next.
const lead = 2

// units returns the pieces of all steps in the order in which they go: those of
// a step in theirs, and after each the one of the next step that is lead pieces
// behind.
func units(steps, n int) []unit {
	out := make([]unit, 0, steps*n)
	number := make([]int, n) // of a piece, when it went last
	for wave := range n + lead*(steps-1) {
		for t := min(steps-1, wave/lead); t >= 0 && wave-lead*t < n; t-- {
			p := wave - lead*t
			out = append(out, unit{t, p, number[p]})
			number[p] = len(out) - 1
		}
	}
	return out
}

// run returns once this rank has sent and received all pieces.
func (g *ring) run(ctx context.Context) error {
	g.tag = tagOf(g.seq, max(g.lane, dataLane))
	most := 0
	for s := range g.size {
		most = max(most, len(g.own(s)))
	}
	n := pieces(most, g.piece)
	g.order = units(g.steps, n)
	g.ready, g.sent = make(tally, len(g.order)), make(tally, len(g.order))
	return duplex(ctx, g.send, g.recv)
}

// segment returns which segment is sent at step t, and received at the step
// before.
func (g *ring) segment(t int) int { return ((g.rank+g.shift-t)%g.size + g.size) % g.size }

func (g *ring) send(ctx context.Context) error {
	var room []byte
	if g.reduce > 0 && g.red.widens() {
		var free func()
		room, free = scratch(g.red.sumBytes(g.piece))
		defer free()
	}
	received := 0
	for _, u := range g.order {
		for u.step > 0 && received <= u.after {
			if err := g.ready.take(ctx); err != nil {
				return err
			}
			received++
		}
		if b := g.outgoing(u.step, u.piece, room); len(b) > 0 {
			if err := g.m.Send(ctx, g.at(1), g.tag, b); err != nil {
				return err
			}
		}
		g.sent.add()
	}
	return nil
}

// outgoing returns what is sent as piece p of step t.
func (g *ring) outgoing(t, p int, room []byte) []byte {
	seg := g.segment(t)
	if t >= g.reduce {
		return cut(g.out(seg), p, g.piece)
	}
	own := cut(g.own(seg), p, g.piece)
	if t == 0 {
		return g.red.widen(room, own)
	}
	return g.sum(seg, p, len(own))
}

// sum returns where the partial results of piece p are, which is of n bytes of
// elements.
func (g *ring) sum(seg, p, n int) []byte {
	return cut(g.partial(seg), p, g.red.sumBytes(g.piece))[:g.red.sumBytes(n)]
}

func (g *ring) recv(ctx context.Context) error {
	var in, room []byte
	if g.reduce > 0 {
		var free func()
		size := g.red.sumBytes(g.piece)
		in, free = scratch(2 * size)
		defer free()
		in, room = in[:size], in[size:]
	}
	for _, u := range g.order {
		if err := g.incoming(ctx, u.step, u.piece, in, room); err != nil {
			return err
		}
		g.ready.add()
	}
	return nil
}

// incoming receives piece p of step t.
func (g *ring) incoming(ctx context.Context, t, p int, in, room []byte) error {
	seg := g.segment(t + 1)
	if t >= g.reduce {
		return g.take(ctx, cut(g.out(seg), p, g.piece))
	}
	own := cut(g.own(seg), p, g.piece)
	in = in[:g.red.sumBytes(len(own))]
	if err := g.take(ctx, in); err != nil {
		return err
	}
	sum := g.sum(seg, p, len(own))
	g.red.add(sum, in, own, room)
	if t == g.reduce-1 {
		g.red.finish(cut(g.out(seg), p, g.piece), sum)
	}
	return nil
}

// take receives b, unless there is nothing to receive.
func (g *ring) take(ctx context.Context, b []byte) error {
	if len(b) > 0 {
		if err := g.m.RecvInto(ctx, g.at(-1), g.tag, b); err != nil {
			return err
		}
	}
	if !g.shared {
		return nil
	}
	// What is overwritten now has to be sent before, by the unit of the same
	// number. No rank waits here for one that does not receive, since all receive
	// before they wait.
	return g.sent.take(ctx)
}

// segments cuts b, which holds elements of size bytes, into one segment for each
// rank, as even as can be.
func segments(b []byte, size, ranks int) func(seg int) []byte {
	n := len(b) / size
	return func(seg int) []byte {
		base, extra := n/ranks, n%ranks
		lo := seg*base + min(seg, extra)
		hi := lo + base
		if seg < extra {
			hi++
		}
		return b[lo*size : hi*size]
	}
}
