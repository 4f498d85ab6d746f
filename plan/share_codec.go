package plan

import (
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/internal/wire"
)

// ShareCodec carries shares between ranks.
type ShareCodec struct{}

// Encode encodes s.
func (ShareCodec) Encode(s *Share) ([]byte, error) {
	w := wire.Writer{B: make([]byte, 0, 16+8*len(s.Pieces))}
	w.Byte(codecVersion)
	lists, at := rankLists(s)
	w.Uvarint(uint64(len(lists)))
	for _, list := range lists {
		w.Uvarint(uint64(len(list)))
		for _, r := range list {
			w.Uvarint(uint64(r))
		}
	}
	w.Uvarint(uint64(len(s.Pieces)))
	var last int64
	for i := range s.Pieces {
		c := &s.Pieces[i]
		w.Varint(c.ID - last)
		last = c.ID
		w.Uvarint(uint64(c.Item))
		w.Uvarint(uint64(c.Rows[0]))
		w.Uvarint(uint64(c.Rows[1]))
		w.Uvarint(uint64(c.Reader))
		w.Uvarint(uint64(at[i]))
	}
	return w.B, nil
}

// rankLists returns the different lists of ranks among the pieces, and for each
// piece the number of its own, from 1, or 0 for none. The pieces of one election
// share their lists, so that comparing addresses is enough.
func rankLists(s *Share) (lists [][]int, at []int) {
	at = make([]int, len(s.Pieces))
	known := map[*int]int{}
	for i := range s.Pieces {
		to := s.Pieces[i].To
		if len(to) == 0 {
			continue
		}
		n, ok := known[&to[0]]
		if !ok || len(lists[n-1]) != len(to) {
			lists = append(lists, to)
			n = len(lists)
			known[&to[0]] = n
		}
		at[i] = n
	}
	return lists, at
}

// minPieceBytes is the least that an encoded piece takes.
const minPieceBytes = 6

// Decode is the inverse of Encode. The error wraps wire.ErrMalformed; whether the
// share makes sense for a plan is [Share.Check]'s to say.
func (ShareCodec) Decode(b []byte) (*Share, error) {
	r := wire.NewReader(b)
	checkVersion(r)
	lists := make([][]int, r.Count(1))
	for i := range lists {
		lists[i] = make([]int, r.Count(1))
		for k := range lists[i] {
			lists[i][k] = r.CountMax(math.MaxInt32)
		}
	}
	n := r.Count(minPieceBytes)
	s := &Share{Pieces: make([]Piece, 0, n)}
	var last int64
	for range n {
		c := Piece{
			ID: last + r.Varint(), Item: r.CountMax(math.MaxInt32), Rows: [2]int64{r.Size(), r.Size()}, Reader: r.CountMax(math.MaxInt32),
		}
		last = c.ID
		if k := r.CountMax(len(lists)); k > 0 {
			c.To = lists[k-1]
		}
		s.Pieces = append(s.Pieces, c)
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	return s, nil
}
