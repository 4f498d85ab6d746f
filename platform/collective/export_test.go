package collective

import "github.com/cairn-ckpt/cairn/group"

// Options are limits that a test sets; zero fields have their defaults.
type Options struct{ Tree, Piece, InFlight int }

// NewWith is New with other limits.
func NewWith(g group.Group, o *Options) (*Comm, error) {
	c, err := New(g)
	if err != nil || o == nil {
		return c, err
	}
	limits := c.o
	if o.Tree != 0 {
		limits.tree = o.Tree
	}
	if o.Piece != 0 {
		limits.piece = o.Piece
	}
	if o.InFlight != 0 {
		limits.inFlight = o.InFlight
	}
	return newComm(g, limits)
}

// Group returns the group.
func (c *Comm) Group() group.Group { return c.g }

// ShortestRun is the least number of contiguous bytes that are sent in place.
const ShortestRun = shortestRun
