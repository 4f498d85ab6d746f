package inproc

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// Leave marks this rank as gone from the group and from all groups made from
// it: calls of theirs that wait for it, and all later ones, fail at once with an
// error that names the rank and wraps [group.ErrLeft] and err, where that is
// not nil. Groups that this rank is not a member of go on. Leaving twice is the
// same as leaving once.
func (g *Group) Leave(err error) {
	cause := group.ErrLeft
	if err != nil {
		cause = fmt.Errorf("%w: %w", group.ErrLeft, err)
	}
	h := g.hub
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	outer := h.ranks[g.rank]
	if slices.ContainsFunc(h.left, func(d departure) bool { return d.rank == outer }) {
		return
	}
	h.left = append(h.left, departure{outer, cause})
	for c := range h.world.waiting {
		if lost := c.hub.loss(); lost != nil {
			c.fail(lost.error(c.hub, c.first.Op))
		}
	}
	h.world.wake()
	h.world.raise()
}
