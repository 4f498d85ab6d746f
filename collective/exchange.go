package collective

import (
	"context"
	"sync"
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

// treeReduce reduces along a binomial tree to rank 0, and hands the result down
// the same tree.
func (x *exchange) treeReduce(ctx context.Context, mem []byte, red reduction) error {
	if err := x.treeUp(ctx, mem, &red); err != nil {
		return err
	}
	return x.treeDown(ctx, mem, 0)
}

// treeUp leaves the reduction of all ranks in the mem of rank 0. A rank adds what
// comes from higher ones, nearest first.
func (x *exchange) treeUp(ctx context.Context, mem []byte, red *reduction) error {
	n := red.sumBytes(len(mem))
	buf, free := scratch(2 * n)
	defer free()
	sum, in := buf[:n], buf[n:]
	copy(sum, red.widen(sum, mem))
	for d := 1; d < x.size; d *= 2 {
		if x.rank&d != 0 {
			return x.m.Send(ctx, x.rank-d, tagOf(x.seq, dataLane), sum)
		}
		if x.rank+d >= x.size {
			continue
		}
		if err := x.m.RecvInto(ctx, x.rank+d, tagOf(x.seq, dataLane), in); err != nil {
			return err
		}
		red.apply(sum, sum, in)
	}
	red.finish(mem, sum)
	return nil
}

// treeDown hands root's mem to all ranks.
func (x *exchange) treeDown(ctx context.Context, mem []byte, root int) error {
	after := (x.rank - root + x.size) % x.size
	d := 1
	for d < x.size && after&d == 0 {
		d *= 2
	}
	if after > 0 {
		if err := x.m.RecvInto(ctx, x.at(-d), tagOf(x.seq, dataLane), mem); err != nil {
			return err
		}
	}
	for d /= 2; d > 0; d /= 2 {
		if after+d >= x.size {
			continue
		}
		if err := x.m.Send(ctx, x.at(d), tagOf(x.seq, dataLane), mem); err != nil {
			return err
		}
	}
	return nil
}

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
// both sides. So there is always one for which both are ready, even if
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

// duplex runs send and recv at the same time, and ends both when one fails. It
// returns the first error.
func duplex(ctx context.Context, send, recv func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	var first error
	note := func(err error) {
		if err != nil {
			once.Do(func() { first = err; cancel() })
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		note(send(ctx))
	}()
	note(recv(ctx))
	<-done
	return first
}

// tally counts what one goroutine has done for another. It holds no memory for
// what is counted.
type tally chan struct{}

// add never waits: a tally has room for all that there is to do.
func (t tally) add() { t <- struct{}{} }

// take waits for the next.
func (t tally) take(ctx context.Context) error {
	select {
	case <-t:
		return nil
	default:
	}
	select {
	case <-t:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cut returns the bytes of piece p of b, where pieces have size bytes.
func cut(b []byte, p, size int) []byte {
	lo := min(p*size, len(b))
	return b[lo:min(lo+size, len(b))]
}

// pieces returns how many pieces of size bytes hold n bytes.
func pieces(n, size int) int { return (n + size - 1) / size }
