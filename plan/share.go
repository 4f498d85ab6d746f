package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Sharer is a LoadPlanner that says whether ranks may read for each other what
// several of them need; see [Elect]. A planner of another type than
// *[DefaultLoad] that does not say so reads for itself.
type Sharer interface {
	// CanShare reports that FinishPlan leaves the items as they are, and that
	// ResolveTensor and CommitTensor take every box of rows of an item as an item
	// of its own, whoever read it.
	CanShare() bool
}

// CanShare reports whether p is a planner whose items other ranks may read for
// it. What embeds a DefaultLoad has to say so itself: it may have overridden
// what matters.
func CanShare(p LoadPlanner) bool {
	if s, ok := p.(Sharer); ok {
		return s.CanShare()
	}
	_, ok := p.(*DefaultLoad)
	return ok
}

// Share is one rank's part in a load whose ranks read for each other. An item of
// its plan of which there are pieces is made up of them; all others the rank
// reads for itself alone. A share is immutable once it was returned.
type Share struct {
	// Pieces are in the order of their IDs.
	Pieces []Piece
}

// Piece is an item of a rank's plan, or some rows of one, that one rank reads
// for several.
type Piece struct {
	// ID names the piece on all ranks that need it.
	ID int64
	// Item is the position of the item in this rank's plan.
	Item int
	// Rows are the begin and the end of the piece along the first dimension of
	// the item's box. Zero: it is all of the item.
	Rows [2]int64
	// Reader is the rank that reads the piece.
	Reader int
	// To are the ranks that it sends the piece to, ascending; nil on all others.
	To []int
}

// Of returns the piece of it as an item of its own.
func (p *Piece) Of(it ReadItem) ReadItem {
	if p.Rows == [2]int64{} {
		return it
	}
	begin, end := p.Rows[0], p.Rows[1]
	it.DestOffsets, it.SourceOffsets, it.Lengths = slices.Clone(it.DestOffsets), slices.Clone(it.SourceOffsets), slices.Clone(it.Lengths)
	it.DestOffsets[0] += begin
	it.SourceOffsets[0] += begin
	it.Lengths[0] = end - begin
	return it
}

// Check returns an error that wraps ErrProtocol unless s is a share of p for a rank
// among size ranks: each piece is one of a tensor of the plan, and those of an
// item are all of it.
func (s *Share) Check(p *LoadPlan, rank, size int) error {
	byItem := map[int][]*Piece{}
	for i := range s.Pieces {
		c := &s.Pieces[i]
		if err := c.check(p, rank, size); err != nil {
			return fmt.Errorf("%w: piece %d: %w", ErrProtocol, c.ID, err)
		}
		if i > 0 && c.ID <= s.Pieces[i-1].ID {
			return fmt.Errorf("%w: piece %d after piece %d", ErrProtocol, c.ID, s.Pieces[i-1].ID)
		}
		byItem[c.Item] = append(byItem[c.Item], c)
	}
	for i, pieces := range byItem {
		if !complete(pieces, p.Items[i].Lengths) {
			return fmt.Errorf("%w: the pieces of item %d, %q, are not all of it", ErrProtocol, i, p.Items[i].Dest.FQN)
		}
	}
	return nil
}

// check looks at one piece by itself.
func (c *Piece) check(p *LoadPlan, rank, size int) error {
	switch {
	case c.ID < 0:
		return fmt.Errorf("a negative number")
	case c.Item < 0 || c.Item >= len(p.Items):
		return fmt.Errorf("item %d of %d", c.Item, len(p.Items))
	case p.Items[c.Item].Kind != KindTensor:
		return fmt.Errorf("item %d is no tensor", c.Item)
	case c.Reader < 0 || c.Reader >= size:
		return fmt.Errorf("rank %d of %d reads it", c.Reader, size)
	case (c.Reader == rank) != (len(c.To) > 0):
		return fmt.Errorf("rank %d reads it and rank %d sends it to %d", c.Reader, rank, len(c.To))
	}
	for i, to := range c.To {
		if to < 0 || to >= size || to == rank || i > 0 && to <= c.To[i-1] {
			return fmt.Errorf("rank %d of %d is to have it", to, size)
		}
	}
	return nil
}

// complete reports whether the pieces are all rows of a box of the given sizes, each
// once.
func complete(pieces []*Piece, sizes []int64) bool {
	if len(pieces) == 1 && pieces[0].Rows == [2]int64{} {
		return true
	}
	slices.SortFunc(pieces, func(a, b *Piece) int { return cmp.Compare(a.Rows[0], b.Rows[0]) })
	var end int64
	for _, c := range pieces {
		if c.Rows[0] != end || c.Rows[1] <= end {
			return false
		}
		end = c.Rows[1]
	}
	return len(sizes) > 0 && end == sizes[0]
}

// bytesOf returns the bytes of a box of elements of a type.
func bytesOf(sizes []int64, d tensor.DType) int64 {
	return tensor.Box{Sizes: sizes}.Volume() * int64(d.Size())
}
