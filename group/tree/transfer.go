package tree

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

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
