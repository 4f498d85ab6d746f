package tree

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
)

// call is one collective call as a node sees it. It is guarded by the node's
// lock until it is decided; after that it does not change.
type call struct {
	team   *team
	number uint64

	// What this rank and the subtrees below have brought.
	op      group.Op // of this rank's call
	entered bool     // by this rank
	came    []bool   // by the subtree of each rank below; the last is this rank
	left    int      // how many of them are yet to come
	first   int      // the rank whose call is call
	call    group.Call
	held    bool       // values are too large to travel with the call
	values  []labelled // those that are here
	bytes   int        // of values
	failing bool       // the rank above was told that the call fails

	transfer // values on their way, once all have come

	decided bool
	err     *group.Error // nil: it succeeded
	local   *group.Error // what this rank made it fail with, or nil
	sub     *team        // of OpSub
	done    chan struct{}
}

func newCall(t *team, number uint64) *call {
	n := len(t.down) + 1
	return &call{
		team: t, number: number, came: make([]bool, n), left: n,
		transfer: newTransfer(n), done: make(chan struct{}),
	}
}

// receive handles a frame of an undecided call.
func (c *call) receive(from int, f frame) error {
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

// below notes that the subtree of a rank below has come.
func (c *call) below(from int, f frame) error {
	size := c.team.ranks.size()
	for _, v := range f.values {
		if v.rank >= size {
			return fmt.Errorf("value of rank %d of %d: %w", v.rank, size, errProtocol)
		}
	}
	if err := f.call.Check(size); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	return c.enter(c.team.branch(from), from, f.call, f.values, f.held)
}

// enter notes that slot i has come: rank, or the subtree below it, with values.
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
	err = &group.Error{Op: err.Op, Ranks: err.Ranks, Err: remote(err.Err)}
	if c.team.isTop() {
		c.verdict(err)
		return
	}
	c.failing = true
	c.team.tellAbove(frame{kind: kindFail, number: c.number, err: err})
}

// failHere is fail for what went wrong on this rank, which keeps the error.
func (c *call) failHere(op group.Op, err error) {
	if c.decided {
		return
	}
	c.local = &group.Error{Op: op, Ranks: []int{c.team.me}, Err: remote(err)}
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

// outcome takes what the top has decided.
func (c *call) outcome(f frame) error {
	if f.err != nil {
		c.verdict(f.err)
		return nil
	}
	size := c.team.ranks.size()
	for _, v := range f.values {
		if v.rank >= size {
			return fmt.Errorf("value of rank %d of %d: %w", v.rank, size, errProtocol)
		}
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

// decide ends the call for this rank. Where it has not entered, the outcome is
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

// transfer is the part of a call in which values travel that are too large to
// go with the call itself. It begins when all ranks have come, so that whoever
// gets a piece waits for it and no piece is ever in the way of another.
type transfer struct {
	going    bool           // all have come
	started  chan struct{}  // closed when going is set
	got      map[int][]byte // whole and partial values, by label
	whole    int            // how many are whole
	streamed bool           // this rank has sent what it holds
	finished []bool         // the subtree of each rank below is done
	undone   int            // how many of them are not
	told     bool           // that this subtree is done
}

func newTransfer(n int) transfer {
	return transfer{started: make(chan struct{}), finished: make([]bool, n-1), undone: n - 1}
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

// destination returns where the value of that label goes.
func (c *call) destination(label int) int {
	switch c.call.Op {
	case group.OpGather:
		return c.call.Root
	case group.OpScatter:
		return label
	}
	return everyone
}

// piece handles a piece of a value: it is kept, passed on, or both.
func (t *team) piece(from *lane, f frame, size int) error {
	if err := from.came(size); err != nil {
		return err
	}
	c := t.calls[f.number]
	if t.lost != nil || c == nil || c.decided || !c.entered {
		from.passed(size) // of a call that has failed
		return nil
	}
	n := t.ranks.size()
	if f.label >= n || f.to >= n || f.total > t.node.opts.MaxValue {
		return fmt.Errorf("piece of %d bytes of rank %d for %d: %w", f.total, f.label, f.to, errProtocol)
	}
	if f.to == t.me || f.to == everyone {
		if err := c.keep(f); err != nil {
			return err
		}
	}
	t.passOn(from, f, size)
	c.settle()
	return nil
}

// passOn sends a piece to the neighbours that are on its way, and makes room for
// the next one once they have it.
func (t *team) passOn(from *lane, f frame, size int) {
	var to []*lane
	switch {
	case f.to == everyone:
		for _, ln := range t.lanes() {
			if ln != from {
				to = append(to, ln)
			}
		}
	case f.to != t.me:
		to = []*lane{t.towards(f.to)}
	}
	if len(to) == 0 {
		from.passed(size)
		return
	}
	sendAll(to, piece{head: f.encode(), body: f.body, sent: func() { from.passed(size) }})
}

// keep adds a piece to the value that it is of.
func (c *call) keep(f frame) error {
	b, known := c.got[f.label]
	if len(b) != f.offset || known && len(b) == cap(b) || !c.isMine(f.label) {
		return fmt.Errorf("piece at %d of the value of rank %d: %w", f.offset, f.label, errProtocol)
	}
	switch {
	case known && len(b)+len(f.body) > cap(b):
		return fmt.Errorf("piece beyond the value of rank %d: %w", f.label, errProtocol)
	case !known && len(f.body) == f.total:
		b = slices.Clip(f.body) // the frame is this node's
	default:
		if !known {
			b = make([]byte, 0, f.total)
		}
		b = append(b, f.body...)
	}
	c.put(f.label, b)
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

// doneBelow notes that the subtree of a rank below has all it wants.
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

// outgoing returns the values that this rank is to send.
func (c *call) outgoing() []labelled {
	if !c.held {
		return nil
	}
	return c.values
}

// sendAll queues a piece on lanes. It is sent once all of them have sent it.
func sendAll(to []*lane, p piece) {
	left := new(atomic.Int32)
	left.Store(int32(len(to)))
	sent := p.sent
	p.sent = func() {
		if left.Add(-1) == 0 {
			sent()
		}
	}
	for _, ln := range to {
		ln.sendPiece(p)
	}
}

// stream sends what this rank holds, piece by piece, until the call is decided.
// Where the context ends the call is made to fail.
func (c *call) stream(ctx context.Context) {
	room := make(chan struct{}, ahead)
	for range ahead {
		room <- struct{}{}
	}
	for _, v := range c.outgoing() {
		to := c.route(v.rank)
		for off := 0; len(to) > 0 && (off == 0 || off < len(v.value)); off += maxPiece {
			select {
			case <-room:
			case <-c.done:
				return
			case <-ctx.Done():
				c.end(ctx)
				return
			}
			body := v.value[off:min(off+maxPiece, len(v.value))]
			f := frame{
				kind: kindPiece, id: c.team.id, number: c.number,
				label: v.rank, to: c.destination(v.rank), total: len(v.value), offset: off,
			}
			sendAll(to, piece{head: f.encode(), body: body, sent: func() { room <- struct{}{} }})
		}
	}
	n := c.team.node
	n.mu.Lock()
	defer n.mu.Unlock()
	c.streamed = true
	c.settle()
}

// route returns the lanes by which a value of this rank leaves.
func (c *call) route(label int) []*lane {
	t := c.team
	switch dst := c.destination(label); dst {
	case everyone:
		return t.lanes()
	case t.me:
		return nil
	default:
		return []*lane{t.towards(dst)}
	}
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
			c.stream(ctx)
		case <-ended:
			ended = nil
			c.end(ctx)
		}
	}
}
