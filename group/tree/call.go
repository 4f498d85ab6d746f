package tree

import (
	"fmt"
	"slices"

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
