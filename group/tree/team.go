package tree

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// team is the state of a node for one group of its rank. It is guarded by the node's lock,
// except for fields that never change.
type team struct {
	node   *Node
	id     id
	parent *team // the group that it was made of, or nil
	ranks  members
	me     int

	above  int        // the rank above this one, or -1
	tree   span       // this rank and all ranks below it
	up     *neighbour // above; nil on top
	down   []*neighbour
	values Values

	next     uint64 // number of this rank's next call
	calls    map[uint64]*call
	alarms   map[uint64]chan struct{}
	passed   []uint64      // numbers of the last alarms that were passed on
	lost     *group.Error  // the error of every later call, or nil; its Op is empty
	over     chan struct{} // closed once lost is set
	reported bool          // that a rank is gone, to the rank above
}

// newTeam makes this rank's end of a group and handles frames that came for it before. The
// lock is held.
func (n *Node) newTeam(id id, from *team, ranks members, me int) *team {
	k := n.opts.Arity
	t := &team{
		node: n, id: id, parent: from, ranks: ranks, me: me,
		calls: make(map[uint64]*call), alarms: make(map[uint64]chan struct{}), over: make(chan struct{}),
		values: n.net.Values(id),
	}
	t.tree, t.above = locate(me, ranks.size(), k)
	if t.above >= 0 {
		t.up = &neighbour{n.upLink(ranks.outer(t.above)), t.above}
	}

	for i := range t.tree.fanout(k) {
		r := t.tree.child(i, k).first
		t.down = append(t.down, &neighbour{n.downLink(ranks.outer(r)), r})
	}

	n.teams[id] = t
	t.inherit()

	for _, e := range n.early[id] {
		n.waits -= e.size
		if err := t.receive(e.link, e.frame); err != nil {
			n.wg.Go(func() { e.link.fail(fmt.Errorf("%w: %w", group.ErrGone, err)) })
		}
	}

	delete(n.early, id)
	return t
}

// inherit notes the ranks that are known to be gone: ranks that are gone in the group that
// this one was made of, and ranks with broken links.
func (t *team) inherit() {
	for a := t.parent; a != nil; a = a.parent {
		if a.lost == nil {
			continue
		}
		if r := t.ranks.index(a.ranks.outer(a.lost.Ranks[0])); r >= 0 {
			t.gone(r, group.NewRemoteError(a.lost.Err))
		}
	}
	for _, nb := range t.neighbours() {
		nb.mu.Lock()
		err := nb.err
		nb.mu.Unlock()
		if err != nil {
			t.gone(nb.rank, group.NewRemoteError(err))
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

// neighbours returns all neighbours.
func (t *team) neighbours() []*neighbour {
	if t.up == nil {
		return t.down
	}
	return append([]*neighbour{t.up}, t.down...)
}

// neighbour returns the neighbour at the other end of a link, or nil.
func (t *team) neighbour(l *link) *neighbour {
	for _, nb := range t.neighbours() {
		if nb.link == l {
			return nb
		}
	}
	return nil
}

// branch returns the index in t.down of the subtree that contains rank, or -1 if
// rank is not below this one.
func (t *team) branch(rank int) int { return t.tree.branch(rank, t.node.opts.Arity) }

// towards returns the neighbour on the way to another rank.
func (t *team) towards(rank int) *neighbour {
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
	for _, nb := range t.down {
		nb.send(b)
	}
}

// tellAbove sends a frame to the rank above.
func (t *team) tellAbove(f frame) {
	f.id = t.id
	t.up.send(f.encode())
}

// call returns the call of that number, or nil if it is over for this rank.
func (t *team) call(number uint64) *call {
	c := t.calls[number]
	if c == nil && number >= t.next {
		c = newCall(t, number)
		t.calls[number] = c
	}
	return c
}

// receive handles a frame of this group.
func (t *team) receive(l *link, f frame) error {
	nb := t.neighbour(l)
	if nb == nil {
		return fmt.Errorf("rank %d is no neighbour: %w", l.peer, errProtocol)
	}

	from, down := nb.rank, nb == t.up
	switch f.kind {
	case kindLost:
		if f.rank >= t.ranks.size() {
			return fmt.Errorf("rank %d of %d is gone: %w", f.rank, t.ranks.size(), errProtocol)
		}
		if down {
			t.end(f.rank, group.NewRemoteError(f.err.Err))
		} else {
			t.gone(f.rank, group.NewRemoteError(f.err.Err))
		}
		return nil
	case kindAlarm:
		t.alarmed(f.number, from)
		return nil
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

// join makes this rank's next call with its values.
func (t *team) join(ctx context.Context, call group.Call, values []labelled) (*call, error) {
	t.node.mu.Lock()
	defer t.node.mu.Unlock()

	c := t.calls[t.next]
	if c == nil && t.lost != nil {
		return nil, t.lossOf(call.Op)
	}

	c = t.call(t.next)
	delete(t.alarms, t.next)
	t.next++
	c.entered, c.op = true, call.Op
	if c.decided {
		delete(t.calls, c.number)
		return c, nil
	}

	if err := t.check(ctx, call, values); err != nil {
		c.failHere(call.Op, err)
		return c, nil
	}

	held := false
	for _, v := range values {
		held = held || len(v.value) > maxInline
	}

	return c, c.enter(len(t.down), t.me, call, values, held)
}

// check returns why this rank cannot make the call, or nil.
func (t *team) check(ctx context.Context, call group.Call, values []labelled) error {
	if err := group.ContextError(ctx); err != nil {
		return err
	}
	if err := call.Check(t.me, t.ranks.size(), len(values)); err != nil {
		return err
	}

	for _, v := range values {
		if limit := t.node.opts.MaxValue; len(v.value) > limit {
			return fmt.Errorf("value of %d bytes, more than %d: %w", len(v.value), limit, group.ErrInvalid)
		}
	}

	return nil
}

// gone records that a rank is gone. A rank other than the top passes this on to the rank
// above, and the top decides the outcome. If the rank above is gone, this rank decides
// for the ranks below it. The rank above counts as gone only if the link to it ends:
// outcomes that were decided before may still arrive over that link. The lock is held.
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
	t.raise(t.next) // work before the next call need not go on
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

	t.values.Close()
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

var _ group.Alarmer = (*Group)(nil)

// maxPassed is how many alarms a node remembers in order not to pass them on
// again, should many ranks raise the same.
const maxPassed = 64

// alarm returns the channel that the alarm before the call of that number closes.
func (t *team) alarm(number uint64) chan struct{} {
	if t.alarms[number] == nil {
		t.alarms[number] = make(chan struct{})
	}
	return t.alarms[number]
}

// raise raises the alarm before the call of that number, once.
func (t *team) raise(number uint64) {
	a := t.alarm(number)
	select {
	case <-a:
	default:
		close(a)
	}
}

// alarmed raises an alarm here, unless the call has begun, and passes it on to
// all neighbours but the one that it came from.
func (t *team) alarmed(number uint64, from int) {
	if slices.Contains(t.passed, number) {
		return
	}

	t.passed = append(t.passed, number)
	if len(t.passed) > maxPassed {
		t.passed = t.passed[1:]
	}
	if number >= t.next {
		t.raise(number)
	}

	f := frame{kind: kindAlarm, id: t.id, number: number}
	b := f.encode()
	for _, nb := range t.neighbours() {
		if nb.rank != from {
			nb.send(b)
		}
	}
}

// Alarm tells the other ranks that this one has failed before its next call.
func (g *Group) Alarm() {
	g.team.node.mu.Lock()
	defer g.team.node.mu.Unlock()
	g.team.alarmed(g.team.next, g.team.me)
}

// Alarmed returns a channel that is closed by the first Alarm before the rank's
// next call, and if a rank is gone.
func (g *Group) Alarmed() <-chan struct{} {
	g.team.node.mu.Lock()
	defer g.team.node.mu.Unlock()
	if g.team.lost != nil {
		g.team.raise(g.team.next)
	}
	return g.team.alarm(g.team.next)
}

// members are the ranks of a group by their numbers in the group of all ranks. The list of
// the group of all ranks is not kept: at ten thousand ranks it would be the largest part of a
// node.
type members struct {
	n    int
	list []int // nil: all ranks, each under its own number
}

func (m members) size() int { return m.n }

// outer returns the number of a member in the group of all ranks.
func (m members) outer(rank int) int {
	if m.list == nil {
		return rank
	}
	return m.list[rank]
}

// index returns the rank of the member with that number in the group of all
// ranks, or -1 if it is not a member.
func (m members) index(outer int) int {
	switch {
	case m.list != nil:
		return slices.Index(m.list, outer)
	case outer >= 0 && outer < m.n:
		return outer
	}
	return -1
}

// all returns the list, which is the caller's.
func (m members) all() []int {
	list := make([]int, m.n)
	for r := range list {
		list[r] = m.outer(r)
	}
	return list
}

// some returns the members of a group of some of these.
func (m members) some(ranks []int) members {
	list := make([]int, len(ranks))
	for i, r := range ranks {
		list[i] = m.outer(r)
	}
	return members{n: len(list), list: list}
}
