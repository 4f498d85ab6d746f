package inproc

import (
	"github.com/cairn-ckpt/cairn/group"
)

// deposit is what one rank brings to a call.
type deposit struct {
	group.Call
	rank  int
	ended error    // why the rank's context has ended already, or nil
	value []byte   // for all calls but scatter
	parts [][]byte // for scatter, at its root
}

// call is one collective call of a group. It is decided once, and does not
// change after that; done is closed then.
type call struct {
	hub     *hub
	entered int     // ranks that have come, in time or late; guarded by world.mu
	first   deposit // of the first rank that came
	here    int     // deposits taken
	values  [][]byte
	sub     *hub
	err     *group.Error
	done    chan struct{}
	decided bool // guarded by world.mu
}

func newCall(h *hub) *call {
	c := &call{hub: h, done: make(chan struct{})}
	if h.world.waiting == nil {
		h.world.waiting = make(map[*call]struct{})
	}
	h.world.waiting[c] = struct{}{}
	return c
}

// take adds a rank's deposit, unless the call is decided, and decides it where
// this deposit is wrong or the last. The lock is held.
func (c *call) take(d deposit) {
	if c.decided {
		return
	}
	if c.here == 0 {
		c.first = d
	}
	if err := c.check(d); err != nil {
		c.fail(err)
		return
	}
	if c.values == nil {
		c.values = make([][]byte, len(c.hub.ranks))
	}
	if d.Op != group.OpScatter {
		c.values[d.rank] = d.value
	} else if d.rank == d.Root {
		c.values = d.parts
	}
	c.here++
	if c.here == len(c.hub.ranks) {
		c.complete()
	}
}

// check returns the error that the deposit makes the call fail with, or nil.
func (c *call) check(d deposit) *group.Error {
	n := len(c.hub.ranks)
	err := d.ended
	if err == nil {
		err = d.Check(n)
	}
	if err == nil && d.Op == group.OpScatter && d.rank == d.Root {
		err = group.CheckScatter(len(d.parts), n)
	}
	if err != nil {
		return &group.Error{Op: d.Op, Ranks: []int{d.rank}, Err: err}
	}
	if !d.Equal(c.first.Call) {
		return group.Mismatch(c.first.rank, c.first.Call, d.rank, d.Call)
	}
	return nil
}

// complete decides that the call has succeeded.
func (c *call) complete() {
	if c.first.Op == group.OpSub {
		ranks := make([]int, len(c.first.Ranks))
		for i, r := range c.first.Ranks {
			ranks[i] = c.hub.ranks[r]
		}
		c.sub = newHub(c.hub.world, c.hub, ranks)
	}
	c.decide()
}

// fail decides that the call has failed, unless it is decided.
func (c *call) fail(err *group.Error) {
	if c.decided {
		return
	}
	c.err, c.values = err, nil
	c.decide()
}

func (c *call) decide() {
	c.decided = true
	delete(c.hub.world.waiting, c)
	close(c.done)
}
