package tree

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
)

// call is one collective call as a node sees it. It is guarded by the node's
// lock until it is decided; after that it does not change.
type call struct {
	team   *team
	number uint64

	// The contributions of this rank and the subtrees below.
	op      group.Op // of this rank's call
	entered bool     // by this rank
	came    []bool   // by the subtree of each rank below; the last is this rank
	left    int      // how many of them are yet to come
	first   int      // the rank that made the call in the next field
	call    group.Call
	held    bool       // values are too large to travel with the call
	holds   []bool     // the subtree of each rank below holds its values back
	values  []labelled // values that have arrived
	bytes   int        // of values
	failing bool       // the rank above knows that the call fails

	// Values that are too large to travel with the call travel once all ranks have made it.
	going    bool           // they travel
	started  chan struct{}  // closed when going is set
	got      map[int][]byte // whole and partial values, by label
	whole    int            // how many are whole
	streamed bool           // this rank has sent its held values
	finished []bool         // the subtree of each rank below is done
	undone   int            // how many of them are not
	told     bool           // that this subtree is done

	decided bool
	err     *group.Error // nil: it succeeded
	local   *group.Error // the error with which this rank made it fail, or nil
	sub     *team        // of OpSub
	done    chan struct{}
}

func newCall(t *team, number uint64) *call {
	n := len(t.down) + 1
	return &call{
		team: t, number: number, came: make([]bool, n), left: n, holds: make([]bool, n),
		started: make(chan struct{}), finished: make([]bool, n-1), undone: n - 1, done: make(chan struct{}),
	}
}

// receive handles a frame of an undecided call.
func (c *call) receive(from int, f frame) error {
	size := c.team.ranks.size()
	for _, v := range f.values {
		if v.rank >= size {
			return fmt.Errorf("value of rank %d of %d: %w", v.rank, size, errProtocol)
		}
	}

	switch f.kind {
	case kindEnter:
		return c.below(from, f)
	case kindFail:
		c.fail(f.err)
	case kindGo:
		if c.entered {
			c.start()
		}
	case kindDone:
		return c.doneBelow(from)
	case kindOutcome:
		return c.outcome(f)
	}

	return nil
}

// below records that all ranks of the subtree of a rank below have made the call.
func (c *call) below(from int, f frame) error {
	size := c.team.ranks.size()
	if err := f.call.Check(from, size, size); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	return c.enter(c.team.branch(from), from, f.call, f.values, f.held)
}

// enter records that rank, or the subtree below it, has made the call, with values. i is
// its position among this rank and the ranks directly below it.
func (c *call) enter(i, rank int, call group.Call, values []labelled, held bool) error {
	if c.came[i] {
		return fmt.Errorf("rank %d came twice to call %d: %w", rank, c.number, errProtocol)
	}

	c.came[i] = true
	if c.left == len(c.came) {
		c.first, c.call = rank, call
	} else if !call.Equal(c.call) {
		c.fail(group.Mismatch(c.first, c.call, rank, call))
	}

	c.left--
	c.holds[i] = held
	c.held = c.held || held
	c.values = append(c.values, values...)
	for _, v := range values {
		c.bytes += weight(v.value)
	}

	if c.left == 0 && !c.failing && !c.decided {
		c.complete()
	}
	return nil
}

// complete goes on once this rank and all below have come.
func (c *call) complete() {
	c.held = c.held || c.bytes > maxMerged
	switch {
	case c.team.isTop() && c.held:
		c.start()
	case c.team.isTop():
		c.succeed()
	default:
		f := frame{kind: kindEnter, number: c.number, call: c.call, held: c.held}
		if !c.held {
			f.values, c.values = c.values, nil
		}
		c.team.tellAbove(f)
	}
}

// fail makes the call fail: the top decides so, the others tell it.
func (c *call) fail(err *group.Error) {
	if c.decided || c.failing {
		return
	}

	err = &group.Error{Op: err.Op, Ranks: err.Ranks, Err: group.NewRemoteError(err.Err)}
	if c.team.isTop() {
		c.verdict(err)
		return
	}

	c.failing = true
	c.team.tellAbove(frame{kind: kindFail, number: c.number, err: err})
}

// failHere is fail for an error of this rank, which keeps it.
func (c *call) failHere(op group.Op, err error) {
	if c.decided {
		return
	}
	c.local = &group.Error{Op: op, Ranks: []int{c.team.me}, Err: group.NewRemoteError(err)}
	c.fail(c.local)
}

// verdict decides that the call has failed, here and below.
func (c *call) verdict(err *group.Error) {
	c.team.tellBelow(frame{kind: kindOutcome, number: c.number, err: err})
	c.decide(err)
}

// succeed decides that the call has succeeded, here and below. Values that
// travel with it are in c.values.
func (c *call) succeed() {
	t := c.team
	for i, ln := range t.down {
		f := frame{kind: kindOutcome, id: t.id, number: c.number}
		if !c.going {
			f.values = c.share(t.tree.child(i, t.node.opts.Arity))
		}
		ln.send(f.encode())
	}

	if c.call.Op == group.OpSub {
		c.makeSub()
	}
	c.decide(nil)
}

// outcome handles the decision of the top.
func (c *call) outcome(f frame) error {
	if f.err != nil {
		c.verdict(f.err)
		return nil
	}
	if c.left > 0 {
		return fmt.Errorf("call %d succeeded without this rank: %w", c.number, errProtocol)
	}

	if !c.going {
		c.values = f.values
	}
	c.succeed()
	return nil
}

// share returns the values for the ranks of a subtree.
func (c *call) share(s span) []labelled {
	switch c.call.Op {
	case group.OpGather:
		if !s.contains(c.call.Root) {
			return nil
		}
	case group.OpScatter:
		var some []labelled
		for _, v := range c.values {
			if s.contains(v.rank) {
				some = append(some, v)
			}
		}
		return some
	}
	return c.values
}

// decide ends the call for this rank. If it has not entered, the outcome is
// kept for when it does.
func (c *call) decide(err *group.Error) {
	if err != nil && c.local != nil && err.Error() == c.local.Error() {
		err = c.local // of the same text, and with the error itself
	}
	c.decided, c.err = true, err
	if c.entered {
		delete(c.team.calls, c.number)
	}
	close(c.done)
}

// makeSub makes this rank's end of the group that the call is for.
func (c *call) makeSub() {
	t := c.team
	if me := slices.Index(c.call.Ranks, t.me); me >= 0 {
		c.sub = t.node.newTeam(t.subID(c.number), t, t.ranks.some(c.call.Ranks), me)
	}
}

// start lets values travel, here and below.
func (c *call) start() {
	if c.going {
		return
	}

	c.going = true
	c.team.tellBelow(frame{kind: kindGo, number: c.number})
	if c.held {
		for _, v := range c.values {
			if c.isMine(v.rank) {
				c.put(v.rank, slices.Clip(v.value))
				c.whole++
			}
		}
	}

	close(c.started)
}

// isMine reports whether this rank gets the value of that label.
func (c *call) isMine(label int) bool {
	switch c.call.Op {
	case group.OpGather:
		return c.call.Root == c.team.me
	case group.OpScatter:
		return label == c.team.me
	}
	return true
}

// wants returns how many values this rank gets.
func (c *call) wants() int {
	switch c.call.Op {
	case group.OpGather:
		if c.call.Root != c.team.me {
			return 0
		}
		return c.team.ranks.size()
	case group.OpAllGather:
		return c.team.ranks.size()
	}
	return 1
}

// fromBelow returns how many values come from the subtree i below this rank. A
// subtree that does not hold its values back has sent them with the call.
func (c *call) fromBelow(i int) int {
	t := c.team
	s := t.tree.child(i, t.node.opts.Arity)
	inside := s.contains(c.call.Root)
	switch {
	case c.call.Op == group.OpAllGather && c.holds[i], c.call.Op == group.OpGather && c.holds[i] && !inside:
		return s.size()
	case c.call.Op == group.OpScatter && inside:
		return t.ranks.size() - s.size()
	case c.call.Op == group.OpBroadcast && inside:
		return 1
	}

	return 0
}

// fromAbove returns how many values come from the rank above. It also returns the
// values of this subtree to it, unless the subtree holds them back.
func (c *call) fromAbove() int {
	t := c.team
	inside := t.tree.contains(c.call.Root)
	switch {
	case t.isTop():
	case c.call.Op == group.OpAllGather, c.call.Op == group.OpGather && inside:
		if c.held {
			return t.ranks.size() - t.tree.size()
		}
		return t.ranks.size()
	case c.call.Op == group.OpScatter && !inside:
		return t.tree.size()
	case c.call.Op == group.OpBroadcast && !inside:
		return 1
	}

	return 0
}

// route returns the neighbours to which the value of a label goes from this rank,
// except the neighbour that it came from.
func (c *call) route(label int, from *neighbour) []*neighbour {
	t := c.team
	dst := label // of a scatter
	switch c.call.Op {
	case group.OpGather:
		dst = c.call.Root
	case group.OpAllGather, group.OpBroadcast:
		return slices.DeleteFunc(slices.Clone(t.neighbours()), func(nb *neighbour) bool { return nb == from })
	}

	if dst == t.me {
		return nil
	}
	return []*neighbour{t.towards(dst)}
}

// move sends the values that this rank holds and passes on pieces of its neighbours, until
// ctx ends.
func (c *call) move(ctx context.Context, wg *sync.WaitGroup) {
	t := c.team
	relay := func(from *neighbour, values int) {
		if values > 0 {
			wg.Go(func() { c.relay(ctx, from, values) })
		}
	}
	for i, nb := range t.down {
		relay(nb, c.fromBelow(i))
	}

	relay(t.up, c.fromAbove())
	wg.Go(func() {
		if !c.stream(ctx) {
			return
		}
		t.node.mu.Lock()
		defer t.node.mu.Unlock()
		c.streamed = true
		c.settle()
	})
}

// stream sends the values that this rank holds back, and reports whether it could.
// Values that go different ways do not wait for each other.
func (c *call) stream(ctx context.Context) bool {
	if !c.held {
		return true
	}

	ways := make(map[*neighbour][]labelled)
	for _, v := range c.values {
		if to := c.route(v.rank, nil); len(to) > 0 {
			ways[to[0]] = append(ways[to[0]], v)
		}
	}

	var wg sync.WaitGroup
	var failed atomic.Bool
	for _, values := range ways {
		wg.Go(func() {
			if !c.sendPieces(ctx, values) {
				failed.Store(true)
			}
		})
	}

	wg.Wait()
	return !failed.Load()
}

// sendPieces sends values piece by piece, and reports whether it could.
func (c *call) sendPieces(ctx context.Context, values []labelled) bool {
	var head []byte
	for _, v := range values {
		to := c.route(v.rank, nil)
		for off := 0; off == 0 || off < len(v.value); off += maxPiece {
			p := piece{c.number, v.rank, len(v.value), off, v.value[off:min(off+maxPiece, len(v.value))]}
			head = p.appendHead(head[:0])
			if !c.pass(ctx, to, head, p.body) {
				return false
			}
		}
	}

	return true
}

// relay takes the pieces of values from a neighbour, keeps them or passes them on,
// or both, until all these values have come.
func (c *call) relay(ctx context.Context, from *neighbour, values int) {
	t := c.team
	for values > 0 {
		b, err := t.values.Recv(ctx, from.peer)
		var p piece
		if err == nil {
			p, err = decodePiece(b)
		}
		if err == nil && p.number < c.number {
			t.values.Release(b)
			continue // left over from a call that failed
		}

		kept := false
		if err == nil {
			kept, err = c.take(p)
		}
		if err != nil {
			if ctx.Err() == nil {
				from.fail(fmt.Errorf("%w: %w", group.ErrGone, err))
			}
			return
		}

		if !c.pass(ctx, c.route(p.label, from), b) {
			return
		}

		if p.offset+len(p.body) == p.total {
			values--
		}
		if !kept {
			t.values.Release(b)
		}
	}
}

// pass sends a piece to neighbours, and reports whether it could.
func (c *call) pass(ctx context.Context, to []*neighbour, parts ...[]byte) bool {
	if len(to) == 1 {
		return c.team.values.Send(ctx, to[0].peer, parts...) == nil
	}

	errs := make([]error, len(to))
	var wg sync.WaitGroup
	for i, nb := range to {
		send := func() { errs[i] = c.team.values.Send(ctx, nb.peer, parts...) }
		if i < len(to)-1 {
			wg.Go(send)
		} else {
			send()
		}
	}

	wg.Wait()
	return !slices.ContainsFunc(errs, func(err error) bool { return err != nil })
}

// take checks a piece, and adds it to its value if that is for this rank. kept reports
// whether the memory of the piece is the memory of the value now.
func (c *call) take(p piece) (kept bool, err error) {
	t := c.team
	t.node.mu.Lock()
	defer t.node.mu.Unlock()

	if p.number > c.number || p.label >= t.ranks.size() || p.total > t.node.opts.MaxValue {
		return false, fmt.Errorf("piece of %d bytes of rank %d in call %d: %w", p.total, p.label, p.number, errProtocol)
	}
	if c.decided || !c.isMine(p.label) {
		return false, nil
	}
	if err := c.keep(p); err != nil {
		return false, err
	}

	c.settle()
	return len(p.body) == p.total, nil
}

// keep adds a piece to its value.
func (c *call) keep(p piece) error {
	b, known := c.got[p.label]
	if len(b) != p.offset || known && len(b) == cap(b) || len(b)+len(p.body) > p.total || known && p.total != cap(b) {
		return fmt.Errorf("piece at %d of the value of rank %d: %w", p.offset, p.label, errProtocol)
	}

	switch {
	case len(p.body) == p.total:
		b = slices.Clip(p.body) // the message is this rank's
	case !known:
		b = append(make([]byte, 0, p.total), p.body...)
	default:
		b = append(b, p.body...)
	}

	c.put(p.label, b)
	if len(b) == cap(b) {
		c.whole++
	}
	return nil
}

func (c *call) put(label int, b []byte) {
	if c.got == nil {
		c.got = make(map[int][]byte)
	}
	c.got[label] = b
}

// doneBelow records that the subtree of a rank below has received all its values.
func (c *call) doneBelow(from int) error {
	i := c.team.branch(from)
	if c.finished[i] {
		return fmt.Errorf("rank %d is done twice with call %d: %w", from, c.number, errProtocol)
	}
	c.finished[i] = true
	c.undone--
	c.settle()
	return nil
}

// settle tells that this rank and all below are done, once they are.
func (c *call) settle() {
	if !c.going || !c.streamed || c.undone > 0 || c.whole < c.wants() || c.told || c.failing || c.decided {
		return
	}
	c.told = true
	if c.team.isTop() {
		c.succeed()
		return
	}
	c.team.tellAbove(frame{kind: kindDone, number: c.number})
}

// end makes the call fail because this rank's context has ended.
func (c *call) end(ctx context.Context) {
	n := c.team.node
	n.mu.Lock()
	defer n.mu.Unlock()
	c.failHere(c.op, group.ContextError(ctx))
}

// wait returns once the call is decided, and takes part until then.
func (c *call) wait(ctx context.Context) {
	started, ended := c.started, ctx.Done()
	for {
		select {
		case <-c.done:
			return
		case <-started:
			started = nil
			var wg sync.WaitGroup
			defer wg.Wait()
			moving, cancel := context.WithCancel(ctx)
			defer cancel()
			c.move(moving, &wg)
		case <-ended:
			ended = nil
			c.end(ctx)
		}
	}
}

// abandon is for a call that may have made a group elsewhere, when this rank does
// not learn of it any more: the others must not wait for this rank there.
func (c *call) abandon() {
	if c.op != group.OpSub || !c.came[len(c.came)-1] {
		return
	}
	c.makeSub()
	if c.sub != nil {
		c.sub.leave(group.NewRemoteError(c.err.Err))
	}
}
