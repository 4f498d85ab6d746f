package collective

import (
	"context"
	"sync"
)

// exchange is a call that all ranks have agreed on.
type exchange struct {
	*Comm
	seq     uint64
	verdict verdict
}

// ring is a reduce-scatter, an all-gather or both, one after the other, in which
// every rank sends pieces to the next.
//
// The elements are cut into a segment for each rank, and these into pieces. At
// step t rank r sends segment r+shift-t and receives the segment before it. The first
// steps reduce: the rank adds its own elements to the partial result that it receives.
// After the last of them the segment is complete, and the other steps pass it on.
//
// Pieces do not wait for the end of a step: a rank sends a piece on a few pieces
// after it has come, while it is in the cache.
type ring struct {
	*exchange
	lane   lane
	shift  int
	reduce int // steps that reduce
	steps  int // all steps
	red    *reduction
	// own returns this rank's elements of a segment.
	own func(seg int) []byte
	// result returns the memory of a segment's partial and complete results.
	result func(seg int) []byte
	// shared says that result returns the same memory for all segments.
	shared bool

	order []unit
	ready tally // units that were received
	sent  tally // units that were sent
}

// unit is a piece that is sent, and one that is received, at a step. A piece that is
// sent after the first step was received at the step before, as unit number after.
type unit struct{ step, piece, after int }

// lead is by how many pieces a step is ahead of the next.
const lead = 2

// units returns the pieces of all steps in their order: the pieces of a step are in
// ascending order, and after each comes the piece of the next step that is lead
// pieces behind.
func units(steps, n int) []unit {
	out := make([]unit, 0, steps*n)
	number := make([]int, n) // the last unit of each piece
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
	most := 0
	for s := range g.size {
		most = max(most, len(g.own(s)))
	}
	g.order = units(g.steps, pieces(most, g.o.piece))
	g.ready, g.sent = make(tally, len(g.order)), make(tally, len(g.order))
	return duplex(ctx, g.send, g.recv)
}

// segment returns the segment that is sent at step t, and received at the step
// before.
func (g *ring) segment(t int) int { return ((g.rank+g.shift-t)%g.size + g.size) % g.size }

func (g *ring) send(ctx context.Context) error {
	received := 0
	for _, u := range g.order {
		for u.step > 0 && received <= u.after {
			if err := g.ready.take(ctx); err != nil {
				return err
			}
			received++
		}

		from := g.result
		if u.step == 0 {
			from = g.own
		}

		if b := cut(from(g.segment(u.step)), u.piece, g.o.piece); len(b) > 0 {
			if err := g.m.Send(ctx, g.at(1), tagOf(g.seq, g.lane), b); err != nil {
				return err
			}
		}
		g.sent.add()
	}

	return nil
}

func (g *ring) recv(ctx context.Context) error {
	var in []byte
	if g.reduce > 0 {
		var free func()
		in, free = scratch(g.o.piece)
		defer free()
	}

	for _, u := range g.order {
		seg := g.segment(u.step + 1)
		result := cut(g.result(seg), u.piece, g.o.piece)
		if u.step >= g.reduce {
			if err := g.take(ctx, result); err != nil {
				return err
			}
		} else {
			if err := g.take(ctx, in[:len(result)]); err != nil {
				return err
			}
			g.red.apply(result, in[:len(result)], cut(g.own(seg), u.piece, g.o.piece))
			if u.step == g.reduce-1 {
				g.red.finish(result, result)
			}
		}

		g.ready.add()
	}

	return nil
}

// take receives b, unless it is empty.
func (g *ring) take(ctx context.Context, b []byte) error {
	if len(b) > 0 {
		if err := g.m.RecvInto(ctx, g.at(-1), tagOf(g.seq, g.lane), b); err != nil {
			return err
		}
	}

	if !g.shared {
		return nil
	}

	// The unit of the same number must be sent before its memory is overwritten. No
	// rank waits here for one that does not receive, since all receive before they
	// wait.
	return g.sent.take(ctx)
}

// segments cuts b, which holds elements of size bytes, into one segment for each
// rank, as evenly as possible.
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

// reduceAll replaces mem by the reduction of all ranks' mem.
func (x *exchange) reduceAll(ctx context.Context, mem []byte, red *reduction) error {
	if x.small(len(mem)) {
		if err := x.treeUp(ctx, mem, red); err != nil {
			return err
		}
		return x.treeDown(ctx, mem, 0)
	}

	seg := segments(mem, red.elem.Size(), x.size)
	g := &ring{exchange: x, lane: dataLane, steps: x.size - 1, red: red, own: seg, result: seg}
	if !red.widens() {
		g.reduce, g.steps = x.size-1, 2*(x.size-1)
		return g.run(ctx)
	}

	if err := x.reduceDirect(ctx, seg, seg(x.rank), red); err != nil {
		return err
	}

	g.lane = passLane
	return g.run(ctx)
}

// treeUp leaves the reduction of all ranks in the mem of rank 0. A rank adds the
// results of higher ranks, nearest first.
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

// chain hands root's mem from rank to rank, piece by piece.
func (x *exchange) chain(ctx context.Context, mem []byte, root int) error {
	tag, n := tagOf(x.seq, dataLane), pieces(len(mem), x.o.piece)
	ready := make(tally, n)
	send := func(ctx context.Context) error {
		for p := range n {
			if err := ready.take(ctx); err != nil {
				return err
			}
			if err := x.m.Send(ctx, x.at(1), tag, cut(mem, p, x.o.piece)); err != nil {
				return err
			}
		}
		return nil
	}

	recv := func(ctx context.Context) error {
		for p := range n {
			if x.rank != root {
				if err := x.m.RecvInto(ctx, x.at(-1), tag, cut(mem, p, x.o.piece)); err != nil {
					return err
				}
			}
			ready.add()
		}
		return nil
	}
	if x.at(1) == root {
		return recv(ctx)
	}
	return duplex(ctx, send, recv)
}

// reduceDirect is a reduce-scatter in which every rank sends its elements of each
// segment to the rank that reduces the segment. own returns this rank's elements of a
// segment, and out is for the result of this rank's segment.
//
// It is for floats of 16 and 8 bits. A ring would carry partial results, which are two
// and four times as large as the elements. In return every rank is connected with all
// others.
//
// Both sides process pieces by number, sender and receiver, in this order. So there is
// always a piece for which both sides are ready, even if sending waits for the
// receiver.
func (x *exchange) reduceDirect(ctx context.Context, own func(seg int) []byte, out []byte, red *reduction) error {
	tag, piece := tagOf(x.seq, dataLane), x.o.piece
	send := func(ctx context.Context) error {
		for p := range pieces(len(own(0)), piece) { // no segment is longer
			for r := range x.size {
				b := cut(own(r), p, piece)
				if r == x.rank || len(b) == 0 {
					continue
				}
				if err := x.m.Send(ctx, r, tag, b); err != nil {
					return err
				}
			}
		}
		return nil
	}

	recv := func(ctx context.Context) error {
		sums := red.sumBytes(piece)
		buf, free := scratch(2*sums + piece)
		defer free()

		for p := range pieces(len(out), piece) {
			mine := cut(own(x.rank), p, piece)
			n := red.sumBytes(len(mine))
			sum, room, in := buf[:n], buf[sums:sums+n], buf[2*sums:2*sums+len(mine)]
			for r := range x.size {
				b := mine
				if r != x.rank {
					b = in
					if err := x.m.RecvInto(ctx, r, tag, in); err != nil {
						return err
					}
				}

				if r == 0 {
					copy(sum, red.widen(sum, b))
				} else {
					red.add(sum, b, room)
				}
			}

			red.finish(cut(out, p, piece), sum)
		}

		return nil
	}
	return duplex(ctx, send, recv)
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

	var wg sync.WaitGroup
	wg.Go(func() { note(send(ctx)) })
	note(recv(ctx))
	wg.Wait()
	return first
}

// tally counts the steps that one goroutine has done for another.
type tally chan struct{}

// add never waits: a tally has room for everything that it counts.
func (t tally) add() { t <- struct{}{} }

// take waits until there is one more.
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

// cut returns piece p of b, which is cut into pieces of size bytes.
func cut(b []byte, p, size int) []byte {
	lo := min(p*size, len(b))
	return b[lo:min(lo+size, len(b))]
}

// pieces returns the number of pieces of size bytes that hold n bytes.
func pieces(n, size int) int { return (n + size - 1) / size }
