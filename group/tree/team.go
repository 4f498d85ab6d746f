package tree

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
)

// team is what a node knows of one group that its rank is in. It is guarded by
// the node's lock, except for what never changes.
type team struct {
	node   *Node
	id     id
	parent *team // the group that it was made of, or nil
	ranks  members
	me     int

	above int   // the rank above this one, or -1
	tree  span  // this rank and all ranks below it
	up    *lane // to above; nil on top
	down  []*lane

	next     uint64 // number of this rank's next call
	calls    map[uint64]*call
	alarms   map[uint64]*alarm
	passed   []uint64      // numbers of the last alarms that were passed on
	lost     *group.Error  // what every call fails with, or nil; its Op is empty
	over     chan struct{} // closed once lost is set
	reported bool          // that a rank is gone, to the rank above
}

// newTeam makes this rank's end of a group and handles what came for it before.
// The lock is held.
func (n *Node) newTeam(id id, from *team, ranks members, me int) *team {
	k := n.opts.Arity
	t := &team{
		node: n, id: id, parent: from, ranks: ranks, me: me,
		calls: make(map[uint64]*call), alarms: make(map[uint64]*alarm), over: make(chan struct{}),
	}
	t.tree, t.above = locate(me, ranks.size(), k)
	if t.above >= 0 {
		t.up = newLane(n.upLink(ranks.outer(t.above)), id, t.above)
	}
	for i := range t.tree.fanout(k) {
		r := t.tree.child(i, k).first
		t.down = append(t.down, newLane(n.downLink(ranks.outer(r)), id, r))
	}
	n.teams[id] = t
	t.inherit()
	for _, e := range n.early[id] {
		n.waits -= e.size
		if err := t.receive(e.link, e.frame, e.size); err != nil {
			n.wg.Go(func() { e.link.fail(fmt.Errorf("%w: %w", group.ErrGone, err)) })
		}
	}
	delete(n.early, id)
	return t
}

// inherit notes the ranks that are known to be gone: those of the group that
// this one was made of, and those whose links have broken.
func (t *team) inherit() {
	for a := t.parent; a != nil; a = a.parent {
		if a.lost == nil {
			continue
		}
		if r := t.ranks.index(a.ranks.outer(a.lost.Ranks[0])); r >= 0 {
			t.gone(r, remote(a.lost.Err))
		}
	}
	for _, ln := range t.lanes() {
		ln.mu.Lock()
		err := ln.err
		ln.mu.Unlock()
		if err != nil {
			t.gone(ln.rank, remote(err))
		}
	}
}

// subID returns the id of the group that the call of that number makes.
func (t *team) subID(number uint64) id {
	h := sha256.Sum256(binary.BigEndian.AppendUint64(t.id[:], number))
	return id(h[:len(id{})])
}

// isTop reports whether this rank decides the group's calls.
func (t *team) isTop() bool { return t.above < 0 }

// lanes returns those to all neighbours.
func (t *team) lanes() []*lane {
	if t.up == nil {
		return t.down
	}
	return append([]*lane{t.up}, t.down...)
}

// laneOf returns the group's lane of a link, or nil where it has none.
func (t *team) laneOf(l *link) *lane {
	if t.up != nil && t.up.link == l {
		return t.up
	}
	for _, ln := range t.down {
		if ln.link == l {
			return ln
		}
	}
	return nil
}

// branch returns the index in t.down of the subtree that contains rank, or -1 if
// rank is not below this one.
func (t *team) branch(rank int) int { return t.tree.branch(rank, t.node.opts.Arity) }

// towards returns the lane to the neighbour on the way to another rank.
func (t *team) towards(rank int) *lane {
	if i := t.branch(rank); i >= 0 {
		return t.down[i]
	}
	return t.up
}

// tellBelow sends a frame to all ranks below.
func (t *team) tellBelow(f frame) {
	if len(t.down) == 0 {
		return
	}
	f.id = t.id
	b := f.encode()
	for _, ln := range t.down {
		ln.send(b)
	}
}

// tellAbove sends a frame to the rank above.
func (t *team) tellAbove(f frame) {
	f.id = t.id
	t.up.send(f.encode())
}

// call returns the call of that number, or nil where it is over for this rank.
func (t *team) call(number uint64) *call {
	c := t.calls[number]
	if c == nil && number >= t.next {
		c = newCall(t, number)
		t.calls[number] = c
	}
	return c
}

// receive handles a frame of this group.
func (t *team) receive(l *link, f frame, size int) error {
	ln := t.laneOf(l)
	if ln == nil {
		return fmt.Errorf("rank %d is no neighbour: %w", l.peer, errProtocol)
	}
	from, down := ln.rank, ln == t.up
	switch f.kind {
	case kindLost:
		if f.rank >= t.ranks.size() {
			return fmt.Errorf("rank %d of %d is gone: %w", f.rank, t.ranks.size(), errProtocol)
		}
		if down {
			t.end(f.rank, remote(f.err.Err))
		} else {
			t.gone(f.rank, remote(f.err.Err))
		}
		return nil
	case kindAlarm:
		t.alarmed(f.number, from)
		return nil
	case kindCredit:
		ln.granted(f.credit)
		return nil
	case kindPiece:
		return t.piece(ln, f, size)
	}
	if down != (f.kind == kindGo || f.kind == kindOutcome) {
		return fmt.Errorf("frame of kind %d from rank %d: %w", f.kind, l.peer, errProtocol)
	}
	if t.lost != nil {
		return nil
	}
	if c := t.call(f.number); c != nil && !c.decided {
		return c.receive(from, f)
	}
	return nil
}
