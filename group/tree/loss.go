package tree

import "github.com/cairn-ckpt/cairn/group"

// gone notes that a rank is gone. The top decides what follows; the others tell
// it, unless the way there is what has gone: then the ranks below follow this
// one. Of the rank above only its own link counts, by which outcomes may still
// come that were decided before it went. The lock is held.
func (t *team) gone(rank int, cause *group.RemoteError) {
	switch {
	case t.lost != nil:
	case t.isTop() || rank == t.above && t.up.isBroken():
		t.end(rank, cause)
	case !t.reported:
		t.reported = true
		t.tellAbove(frame{kind: kindLost, rank: rank, err: &group.Error{Err: cause}})
	}
}

// end ends the group because a rank is gone: calls that are undecided here and
// all later ones fail. The groups made from this one learn of it too.
func (t *team) end(rank int, cause *group.RemoteError) {
	if t.lost != nil {
		return
	}
	t.lost = &group.Error{Ranks: []int{rank}, Err: cause}
	close(t.over)
	t.alarm(t.next).raise() // whoever is busy before the next call need not go on
	t.tellBelow(frame{kind: kindLost, rank: rank, err: t.lost})
	for number, c := range t.calls {
		switch {
		case c.decided:
		case c.entered:
			c.decide(t.lossOf(c.op))
			c.abandon()
		default:
			delete(t.calls, number)
		}
	}
	for _, ln := range t.lanes() {
		ln.close()
	}
	for _, d := range t.node.teams {
		r := d.ranks.index(t.ranks.outer(rank))
		switch {
		case r < 0 || !d.madeOf(t):
		case r == d.me:
			d.leave(cause)
		default:
			d.gone(r, cause)
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
		c.sub.leave(remote(c.err.Err))
	}
}

// lossOf returns the error of a call of a group that is over.
func (t *team) lossOf(op group.Op) *group.Error {
	return &group.Error{Op: op, Ranks: t.lost.Ranks, Err: t.lost.Err}
}

// madeOf reports whether t was made from a, or from one made from it.
func (t *team) madeOf(a *team) bool {
	for p := t.parent; p != nil; p = p.parent {
		if p == a {
			return true
		}
	}
	return false
}

// leave ends the group because this rank leaves it.
func (t *team) leave(cause *group.RemoteError) {
	if t.lost != nil {
		return
	}
	if !t.isTop() {
		t.tellAbove(frame{kind: kindLost, rank: t.me, err: &group.Error{Err: cause}})
	}
	t.end(t.me, cause)
}
