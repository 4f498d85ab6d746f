package inproc

import (
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
)

// world is shared by a group of New and all groups made from it.
type world struct {
	mu sync.Mutex
	// active holds the groups with calls, alarms or messages, which a rank that
	// leaves must reach.
	active map[*hub]struct{} // guarded by mu
}

// hub is the state that all ranks of one group share.
type hub struct {
	world  *world
	parent *hub
	ranks  []int // the members' numbers in the outermost group

	// calls holds the calls by number until every rank has entered them. Ranks
	// are at different numbers only past calls that failed.
	calls map[uint64]*call // guarded by world.mu
	// alarms holds the alarms before the calls of these numbers, made when the
	// first rank asks for one.
	alarms map[uint64]chan struct{} // guarded by world.mu
	// mail holds the messages that wait and the calls that wait for them.
	mail map[route]*mailbox // guarded by world.mu
	// left are the ranks that left this group, in that order.
	left []departure // guarded by world.mu
	// lost is the departure, from this group or one above, that ended this
	// group: the first that a call met, and from then on the only one.
	lost *departure // guarded by world.mu
}

// departure is a rank that left.
type departure struct {
	rank  int // in the outermost group
	cause error
}

func newHub(w *world, parent *hub, ranks []int) *hub {
	return &hub{
		world: w, parent: parent, ranks: ranks,
		calls: make(map[uint64]*call), alarms: make(map[uint64]chan struct{}), mail: make(map[route]*mailbox),
	}
}

// note adds the group to the active ones of its world, or removes it. The lock is held.
func (h *hub) note() {
	if len(h.calls)+len(h.alarms)+len(h.mail) > 0 {
		h.world.active[h] = struct{}{}
	} else {
		delete(h.world.active, h)
	}
}

// enter hands a rank's deposit to the call of that number and returns the call,
// decided or not.
func (h *hub) enter(number uint64, d deposit) *call {
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	defer h.note()

	c := h.calls[number]
	if c == nil {
		c = &call{hub: h, done: make(chan struct{})}
		if lost := h.loss(); lost != nil {
			c.fail(lost.error(h, d.Op)) // every later call fails alike: not kept
			return c
		}
		h.calls[number] = c
	}

	c.entered++
	if c.entered == len(h.ranks) {
		delete(h.calls, number)
		delete(h.alarms, number)
	}

	c.take(d)
	return c
}

// end fails the call because the context of a rank has ended, unless the call is decided.
func (h *hub) end(c *call, rank int, err error) {
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	c.fail(&group.Error{Op: c.first.Op, Ranks: []int{rank}, Err: err})
}

// loss returns the departure that ended this group, or nil. The lock is held.
func (h *hub) loss() *departure {
	for a := h; h.lost == nil && a != nil; a = a.parent {
		i := slices.IndexFunc(a.left, func(d departure) bool { return slices.Contains(h.ranks, d.rank) })
		if i >= 0 {
			h.lost = &a.left[i]
		}
	}
	return h.lost
}

func (d *departure) error(h *hub, op group.Op) *group.Error {
	return &group.Error{Op: op, Ranks: []int{slices.Index(h.ranks, d.rank)}, Err: d.cause}
}

// deposit is the contribution of one rank to a call.
type deposit struct {
	group.Call
	rank   int
	ended  error    // why the rank's context has ended already, or nil
	values [][]byte // see [group.CallFunc]
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

// take adds a rank's deposit, unless the call is decided, and decides it if
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

	if d.Op == group.OpScatter && d.rank == d.Root {
		c.values = d.values
	} else if len(d.values) > 0 {
		c.values[d.rank] = d.values[0]
	}

	c.here++
	if c.here < len(c.hub.ranks) {
		return
	}

	if d.Op == group.OpSub {
		ranks := make([]int, len(d.Ranks))
		for i, r := range d.Ranks {
			ranks[i] = c.hub.ranks[r]
		}
		c.sub = newHub(c.hub.world, c.hub, ranks)
	}
	c.decide()
}

// check returns the error that the deposit makes the call fail with, or nil.
func (c *call) check(d deposit) *group.Error {
	err := d.ended
	if err == nil {
		err = d.Check(d.rank, len(c.hub.ranks), len(d.values))
	}
	if err != nil {
		return &group.Error{Op: d.Op, Ranks: []int{d.rank}, Err: err}
	}

	if !d.Equal(c.first.Call) {
		return group.Mismatch(c.first.rank, c.first.Call, d.rank, d.Call)
	}
	return nil
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
	close(c.done)
}
